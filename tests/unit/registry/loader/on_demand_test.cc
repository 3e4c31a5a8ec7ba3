// What the store, pull, gc and their reports make of layers whose data is loaded while it is used.
#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "registry/gc/gc.h"
#include "registry/layout/layout.h"
#include "registry/loader/chunk_cache.h"
#include "registry/store/disk_use.h"
#include "registry/store/verify.h"
#include "tests/unit/registry/loader/on_demand_layer.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("a pull on demand brings all but the data, and says so", "[registry][loader]") {
  OnDemand made;
  CHECK(made.pulled.bytes_on_demand == made.data.size());
  CHECK(made.pulled.bytes_copied == 4 + 4 * kRawDigestSize);
  CHECK_FALSE(made.to.store.has_blob(made.blob().digest));
  CHECK(made.to.store.is_on_demand(made.layer.manifest));
  const auto known = made.to.store.on_demand(made.blob().digest);
  REQUIRE(known);
  CHECK(known->blob == made.blob());
  CHECK(known->layer == "base/x");
  REQUIRE(known->origins.size() == 1);
  CHECK(known->origins[0].registry == made.from.registry_url());
  CHECK(known->chunks == made.layer.manifest.images[0].blob(BlobRole::Chunks).digest);
  // Again, nothing is copied.
  CHECK(pull(made.to.store, named("base/x:1"), made.address, made.progress, PullMode::OnDemand).bytes_copied == 0);
}

namespace {

struct Warnings : Progress {
  void warn(std::string_view message) override { all += std::string(message) + "\n"; }
  std::string all;
};

}  // namespace

TEST_CASE("a prefetch list that is of no use is told, and the pull goes on without", "[registry][loader]") {
  OnDemand made;
  const std::string hex = made.layer.digest.hex();
  const fs::path file = made.from.registry_path() / "prefetch/sha256" / hex.substr(0, 2) / (hex + ".json");
  const auto pull_again = [&](const std::string& text) {
    fs::create_directories(file.parent_path());
    overwrite(file, text);
    Scratch other;
    Warnings warnings;
    pull(other.store, named("base/x:1"), made.address, warnings, PullMode::OnDemand);
    CHECK(other.store.prefetch_list(made.blob().digest, made.layer.manifest.images[0].blob(BlobRole::Chunks).digest, 4)
              .size() == (warnings.all.empty() ? 1 : 0));
    return warnings.all;
  };
  const PrefetchList list{made.layer.digest, {{made.blob().digest, {{1, 3}}}}};
  CHECK(pull_again(list.text()).empty());
  CHECK_THAT(pull_again("no list"), Contains("is of no use"));
  CHECK_THAT(pull_again(PrefetchList{made.layer.digest, {{made.blob().digest, {{1, 4}}}}}.text()),
             Contains("of a blob that has 4"));
  CHECK_THAT(pull_again(std::string(kLargestPrefetchList + 1, ' ')), Contains("prefetch/sha256"));
}

TEST_CASE("a layer that lies about the chunks of a blob lies about its own alone", "[registry][loader]") {
  OnDemand made;
  const Digest& right = made.layer.manifest.images[0].blob(BlobRole::Chunks).digest;
  const Digest wrong = Digest::of("chunk digests of other bytes");
  const auto session = made.to.store.begin_session();
  made.to.store.hold_on_demand(*session, made.blob(), wrong, {"file:///liar"});
  const auto known = made.to.store.on_demand(made.blob().digest, right);
  REQUIRE(known);
  CHECK(known->chunks == right);
  REQUIRE(known->origins.size() == 1);
  CHECK(known->origins[0].registry == made.from.registry_url());
  CHECK(made.to.store.on_demand(made.blob().digest, wrong)->origins[0].registry == "file:///liar");
  CHECK_FALSE(made.to.store.on_demand(made.blob().digest, Digest::of("nobody's")));
}

TEST_CASE("a layer that lies about the size of a blob keeps nobody from pulling it", "[registry][loader]") {
  OnDemand made;
  Scratch other;
  const Digest wrong = Digest::of("chunk digests of a blob of another size");
  const auto session = other.store.begin_session();
  other.store.hold_on_demand(*session, {BlobRole::Data, made.blob().digest, 4096}, wrong, {"file:///liar"});
  pull(other.store, named("base/x:1"), made.address, made.progress, PullMode::OnDemand);
  CHECK(other.store.is_on_demand(made.layer.manifest));
  CHECK(other.store.on_demand(made.blob().digest, made.chunks())->blob == made.blob());
  CHECK(other.store.on_demand(made.blob().digest, wrong)->blob.size == 4096);
  // And who needs it whole gets the right one, whichever is found first.
  for (const Digest& chunks : {made.chunks(), wrong}) {
    fs::remove(other.store.blob_file(made.blob().digest));
    fetch_whole(other.store, *other.store.on_demand(made.blob().digest, chunks), made.progress);
    CHECK(read_file(other.store.blob_path(made.blob().digest)) == made.data);
  }
}

TEST_CASE("a layer that gives a blob a size which its last chunk has not is not pulled on demand",
          "[registry][loader]") {
  OnDemand made;
  for (const std::int64_t more : {-1, 1}) {
    LayerManifest manifest = made.layer.manifest;
    manifest.images[0].blobs[1].size += static_cast<std::uint64_t>(more);
    REQUIRE(manifest.images[0].blobs[1].role == BlobRole::Data);
    const fs::path file = made.from.registry_path() / manifest_name(manifest.digest());
    fs::create_directories(file.parent_path());
    std::ofstream(file) << manifest.canonical();
    Scratch other;
    const auto pull_it = [&] {
      pull(other.store, LayerRef::of(manifest.digest()), made.address, made.progress, PullMode::OnDemand);
    };
    CHECK_THROWS_AS(pull_it(), Error);
    CHECK_FALSE(other.store.on_demand(made.blob().digest));
    pull(other.store, named("base/x:1"), made.address, made.progress, PullMode::OnDemand);
    CHECK(other.store.on_demand(made.blob().digest)->blob == made.blob());
  }
}

TEST_CASE("a whole pull after one on demand brings the rest", "[registry][loader]") {
  OnDemand made;
  CHECK(pull(made.to.store, named("base/x:1"), made.address, made.progress).bytes_copied == made.data.size());
  CHECK_FALSE(made.to.store.is_on_demand(made.layer.manifest));
}

TEST_CASE("who needs a whole blob gets it fetched, or is told how", "[registry][loader]") {
  OnDemand made;
  try {
    made.to.store.blob_path(made.blob().digest);
    FAIL("a blob that is not here has no path");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("is loaded on demand"));
    CHECK_THAT(error.hints().front(), Contains("dsec pull base/x"));
  }
  made.to.store.set_fetch([&](const OnDemandBlob& blob) { fetch_whole(made.to.store, blob, made.progress); });
  CHECK(read_file(made.to.store.blob_path(made.blob().digest)) == made.data);
}

TEST_CASE("a damaged blob of the registry is not fetched whole", "[registry][loader]") {
  OnDemand made;
  const fs::path file =
      made.from.registry_path() / "blobs/sha256" / made.blob().digest.hex().substr(0, 2) / made.blob().digest.hex();
  overwrite(file, "wrong" + made.data.substr(5));
  CHECK_THROWS_AS(fetch_whole(made.to.store, *made.to.store.on_demand(made.blob().digest), made.progress), Error);
  CHECK_FALSE(made.to.store.has_blob(made.blob().digest));
}

TEST_CASE("a blob that is larger than the disk is not fetched whole", "[registry][loader]") {
  OnDemand made;
  made.to.store.hold_on_demand(*made.to.store.begin_session(), {BlobRole::Data, made.blob().digest, 1ull << 60},
                               made.chunks(), {made.from.registry_url()});
  const OnDemandBlob huge = *made.to.store.on_demand(made.blob().digest);
  try {
    fetch_whole(made.to.store, huge, made.progress);
    FAIL("there is no room for it");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("and the store has"));
  }
}

TEST_CASE("verification and disk use tell what is not here", "[registry][loader]") {
  OnDemand made;
  const VerifyResult verified = verify_store(made.to.store, {}, made.progress);
  CHECK(verified.problems.empty());
  CHECK(verified.on_demand == 1);
  const DiskUse use = disk_use(made.to.store);
  REQUIRE(use.layers.size() == 1);
  CHECK(use.layers[0].on_demand == made.data.size());
  CHECK(use.layers[0].on_demand_here == 0);
  CHECK(use.layers[0].in_place == 0);
}

TEST_CASE("gc removes the chunks of layers that are gone, and no others", "[registry][loader]") {
  OnDemand made;
  const ChunkDigests digests(digests_of(made.data), made.data.size());
  ChunkCache cache(made.to.store.chunks(), 1ull << 40);
  const auto cached =
      cache.open({made.blob().digest, made.layer.manifest.images[0].blob(BlobRole::Chunks).digest}, digests);
  REQUIRE(cached->write(0, std::as_bytes(std::span(made.data)).first(kChunkSize)));
  made.to.store.keep_prefetch_list({made.layer.digest, {{made.blob().digest, {{0, 1}}}}}, made.layer.manifest);
  collect_garbage(made.to.store, {}, false);
  CHECK(fs::exists(cached->file()));
  CHECK_FALSE(fs::is_empty(made.to.store.prefetch_lists()));
  CHECK(disk_use(made.to.store).layers[0].on_demand_here >= kChunkSize);
  made.to.store.remove(named("base/x:1"));
  const GcResult result = collect_garbage(made.to.store, {}, false);
  CHECK(result.bytes >= kChunkSize);
  CHECK(fs::is_empty(made.to.store.chunks()));
  CHECK(fs::is_empty(made.to.store.prefetch_lists()));
  CHECK_FALSE(made.to.store.on_demand(made.blob().digest));
}

TEST_CASE("a file of all chunks becomes a blob of the store", "[registry][loader]") {
  OnDemand made;
  const fs::path file = made.to.home.root() / "complete";
  write_file_atomic(file, made.data);
  const auto session = made.to.store.begin_session();
  made.to.store.take_file(*session, made.blob(), file);
  CHECK(made.to.store.has_blob(made.blob().digest));
  CHECK_FALSE(fs::exists(file));
  CHECK(verify_store(made.to.store, {}, made.progress).problems.empty());
  write_file_atomic(file, "short");
  CHECK_THROWS_AS(made.to.store.take_file(*session, made.blob(), file), Error);
}

namespace {

/// A blob that came wholly, and was damaged later.
struct Damaged : OnDemand {
  Damaged() {
    pull(to.store, named("base/x:1"), address, progress);
    overwrite(to.store.blob_file(blob().digest), "wrong" + data.substr(5));
    CHECK(verify_store(to.store, {}, progress).problems.size() == 1);
  }
  bool healed() {
    return read_file(to.store.blob_file(blob().digest)) == data &&
           verify_store(to.store, {}, progress).problems.empty();
  }
};

}  // namespace

TEST_CASE("a damaged blob is pulled whole, although the rest is to come on demand", "[registry][loader]") {
  Damaged made;
  const PullResult again = pull(made.to.store, named("base/x:1"), made.address, made.progress, PullMode::OnDemand);
  CHECK(again.bytes_copied == made.data.size());
  CHECK(again.bytes_on_demand == 0);
  CHECK(made.healed());
}

TEST_CASE("a file of all chunks replaces a damaged blob", "[registry][loader]") {
  Damaged made;
  const fs::path file = made.to.home.root() / "complete";
  write_file_atomic(file, made.data);
  made.to.store.take_file(*made.to.store.begin_session(), made.blob(), file);
  CHECK(made.healed());
  // It is no longer marked.
  CHECK(made.to.store.begin_session()->hold(made.blob().digest));
}

}  // namespace dsec::registry::test
