// What of a store is evicted, and what stays.
#include "registry/gc/evict.h"

#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"
#include "registry/gc/gc.h"
#include "registry/gc/group_use.h"
#include "registry/layout/layout.h"
#include "registry/offline.h"
#include "registry/registry.h"
#include "registry/store/chunk_digests.h"
#include "registry/store/verify.h"
#include "registry/store/working_set.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

constexpr std::size_t kData = 100'000;
constexpr std::uint64_t kDigests = chunks_of(kData, kChunkSize) * kRawDigestSize;

/// A store with three layers that a registry has, and one that nobody has; base/a was used longest ago, base/c last.
struct Stocked {
  Scratch scratch;
  LocalStore& store = scratch.store;
  RegistryAddress address = RegistryAddress::parse(scratch.registry_url());
  std::map<std::string, engine::StoredLayer> layers;
  Progress quiet;

  Stocked() {
    for (const char* name : {"a", "b", "c", "own"}) put(name);
    publish_refs(store, {"base/a:1", "base/b:1", "base/c:1"}, address);
    use("a", 3);
    use("b", 2);
    use("c", 1);
  }
  void put(const std::string& name) {
    layers.emplace(name, put_layer(store, "base/" + name, "1", "meta " + name,
                                   random_bytes(kData, static_cast<unsigned>(name[0]))));
  }
  /// So many hours from now, since nothing was used before it was added.
  void use(const std::string& name, int before) {
    const std::vector<Digest> used = {layers.at(name).digest};
    note_use(scratch.home, used);
    fs::last_write_time(scratch.home.store() / "used" / used[0].hex(),
                        fs::file_time_type::clock::now() + std::chrono::hours(10 - before));
  }
  bool here(const std::string& name) {
    return store.has_blob(layers.at(name).manifest.images[0].blob(BlobRole::Data).digest);
  }
  std::vector<std::string> gone(const EvictResult& result) {
    std::vector<std::string> names;
    for (const Evicted& one : result.evicted) names.push_back(one.layer);
    return names;
  }
  EvictResult evict_to(std::uint64_t bytes, bool dry_run = false) {
    return evict(store, {.to = bytes, .dry_run = dry_run, .unmount_others = {}}, quiet);
  }
  std::string hold(const std::string& name) {
    LeasedLayers leases;
    leases.refresh(scratch.home);
    for (const WorkingLayer& row : working_layers(store, leases))
      if (row.layer.digest == layers.at(name).digest) return std::string(to_string(row.hold));
    return "no such layer";
  }
};

TEST_CASE("what was used longest ago is evicted first, and no more than has to", "[registry][evict]") {
  Stocked stocked;
  const std::uint64_t all = store_bytes(stocked.store);
  EvictResult result = stocked.evict_to(all);
  CHECK(result.evicted.empty());
  result = stocked.evict_to(all - 1, true);
  CHECK(stocked.gone(result) == std::vector<std::string>{"base/a:1"});
  CHECK(result.after == all - kData);
  CHECK(stocked.here("a"));
  result = stocked.evict_to(all - kData - 1);
  CHECK(stocked.gone(result) == std::vector<std::string>{"base/a:1", "base/b:1"});
  CHECK(result.evicted[0].registry == stocked.address.url());
  CHECK_FALSE(stocked.here("a"));
  CHECK_FALSE(stocked.here("b"));
  CHECK(stocked.here("c"));
  CHECK(store_bytes(stocked.store) == all - 2 * kData);
  CHECK(verify_store(stocked.store, {}, stocked.quiet).problems.empty());
  // Nothing of it is garbage, and the layers are known as before.
  CHECK(collect_garbage(stocked.store, {}, false).removed.empty());
  CHECK(stocked.store.get(named("base/a:1")).digest == stocked.layers.at("a").digest);
  CHECK(stocked.store.is_on_demand(stocked.layers.at("a").manifest));
}

TEST_CASE("evicted data comes again, as a whole and as a part", "[registry][evict]") {
  Stocked stocked;
  stocked.evict_to(0);
  CHECK_FALSE(stocked.here("a"));
  const Blob data = stocked.layers.at("a").manifest.images[0].blob(BlobRole::Data);
  CHECK(stocked.store.on_demand(data.digest)->origins.at(0).registry == stocked.address.url());
  CHECK(bytes_away(stocked.store, stocked.layers.at("a").manifest) == kData);
  CHECK(pull_ref(stocked.store, "base/a:1", stocked.address).bytes_copied == kData);
  CHECK(stocked.here("a"));
  stocked.store.set_fetch([&](const OnDemandBlob& blob) { fetch_whole(stocked.store, blob, stocked.quiet); });
  CHECK(fs::file_size(stocked.store.blob_path(stocked.layers.at("b").manifest.images[0].blob(BlobRole::Data).digest)) ==
        kData);
}

TEST_CASE("what nobody else has, what is pinned, locked, leased or at work stays", "[registry][evict]") {
  Stocked stocked;
  CHECK(stocked.hold("own") == "only-here");
  CHECK(stocked.hold("a") == "");
  const std::string kind = GENERATE(std::string("pinned"), std::string("lock"), std::string("sandbox"),
                                    std::string("session"), std::string("build-cache"));
  const Digest layer = stocked.layers.at("a").digest;
  const fs::path lock =
      kind == "lock" ? stocked.scratch.directory.path() / "dsec.lock" : stocked.scratch.home.cache() / "build/x";
  std::unique_ptr<engine::BlobSession> session;
  if (kind == "pinned") pin(stocked.store, layer);
  if (kind == "lock" || kind == "build-cache") {
    fs::create_directories(lock.parent_path());
    std::ofstream(lock) << "{}";
    stocked.store.register_lock(lock, std::vector{layer});
  }
  if (kind == "session") {
    session = stocked.store.begin_session();
    session->hold(stocked.layers.at("a").manifest.images[0].blob(BlobRole::Data).digest);
  }
  if (kind == "sandbox") {
    engine::Lease lease;
    lease.id = engine::random_id(22);
    lease.creator = engine::ProcessIdentity::self();
    lease.spec.layers = {layer};
    fs::create_directory(stocked.scratch.home.sandboxes() / lease.id);
    lease.write(stocked.scratch.home.sandboxes() / lease.id);
  }
  CHECK(stocked.hold("a") == kind);
  const EvictResult result = stocked.evict_to(0);
  CHECK(stocked.gone(result) == std::vector<std::string>{"base/b:1", "base/c:1"});
  CHECK(result.held.at(kind) >= kData);
  CHECK(result.held.at("only-here") >= kData);
  CHECK(result.held.at("metadata") > 0);
  std::uint64_t held = 0;
  for (const auto& [why, bytes] : result.held) held += bytes;
  CHECK(held == result.after);
  CHECK_THAT(held_text(result), Contains("only here") && Contains(" KiB"));
  CHECK(stocked.here("a"));
  CHECK(stocked.here("own"));
  if (kind != "pinned") return;
  CHECK(unpin(stocked.store, layer));
  CHECK_FALSE(unpin(stocked.store, layer));
  CHECK(stocked.gone(stocked.evict_to(0)) == std::vector<std::string>{"base/a:1"});
}

TEST_CASE("a kept trajectory holds no data here", "[registry][evict]") {
  Stocked stocked;
  LeasedLayers leases;
  leases.by_trajectory["x"] = {stocked.layers.at("a").digest};
  for (const WorkingLayer& row : working_layers(stocked.store, leases))
    if (row.layer.digest == stocked.layers.at("a").digest) CHECK(row.hold == Hold::None);
}

TEST_CASE("a registry that has lost the data, or is away, does not cost the last copy", "[registry][evict]") {
  Stocked stocked;
  const bool away = GENERATE(false, true);
  if (away)
    fs::rename(stocked.scratch.registry_path(), stocked.scratch.registry_path("elsewhere"));
  else
    fs::remove(stocked.scratch.registry_path() /
               blob_name(stocked.layers.at("a").manifest.images[0].blob(BlobRole::Data).digest));
  const EvictResult result = stocked.evict_to(0);
  CHECK(stocked.here("a"));
  CHECK(stocked.gone(result).size() == (away ? 0 : 2));
  CHECK(result.held.at("away") == (away ? 3 * kData : kData));
  CHECK(result.warnings.size() == (away ? 1 : 0));
  CHECK(evict(stocked.store, {.to = 0, .offline = true, .unmount_others = {}}, stocked.quiet).evicted.empty());
}

TEST_CASE("data that another layer needs here stays, too", "[registry][evict]") {
  Stocked stocked;
  put_layer(stocked.store, "base/own2", "1", "other meta", random_bytes(kData, static_cast<unsigned>('a')));
  CHECK(stocked.gone(stocked.evict_to(0)) == std::vector<std::string>{"base/b:1", "base/c:1"});
  CHECK(stocked.here("a"));
}

TEST_CASE("a pinned layer is kept by gc without a tag", "[registry][evict]") {
  Stocked stocked;
  const Digest layer = stocked.layers.at("own").digest;
  pin(stocked.store, layer);
  stocked.store.untag(LayerName::parse("base/own"), "1");
  CHECK(collect_garbage(stocked.store, {}, false).removed.empty());
  unpin(stocked.store, layer);
  CHECK_FALSE(collect_garbage(stocked.store, {}, false).removed.empty());
  CHECK_THROWS_AS(pin(stocked.store, layer), Error);
}

TEST_CASE("use is written down at most once in an hour", "[registry][evict]") {
  Stocked stocked;
  const Digest layer = stocked.layers.at("own").digest;
  CHECK_FALSE(last_use(stocked.scratch.home, layer));
  stocked.store.confirm(std::vector{layer});
  const fs::path file = stocked.scratch.home.store() / "used" / layer.hex();
  struct stat before, after;
  REQUIRE(::stat(file.c_str(), &before) == 0);
  stocked.store.confirm(std::vector{layer});
  REQUIRE(::stat(file.c_str(), &after) == 0);
  CHECK(before.st_ctim.tv_nsec == after.st_ctim.tv_nsec);
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  stocked.store.confirm(std::vector{layer});
  CHECK(std::chrono::system_clock::now() - *last_use(stocked.scratch.home, layer) < std::chrono::minutes(1));
  stocked.store.untag(LayerName::parse("base/own"), "1");
  collect_garbage(stocked.store, {}, false);
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("all that is missing offline is told at once", "[registry][evict]") {
  Stocked stocked;
  const std::vector<LayerRef> here = {named("base/a:1"), named("base/own:1")};
  CHECK(find_here(stocked.store, here).size() == 2);
  stocked.evict_to(0);
  const std::vector<LayerRef> wanted = {named("base/none:1"), named("base/a:1"), named("base/own:1"), named("base/b:1"),
                                        named("base/other:2")};
  try {
    find_here(stocked.store, wanted);
    FAIL("all of it is here");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.message(), Contains("layer base/none:1 is not here") &&
                                    Contains("layer base/other:2 is not here") &&
                                    Contains("97.7 KiB of the data of base/a:1 are not here") &&
                                    Contains("of base/b:1 are not here") && !Contains("base/own"));
    CHECK(error.hints()[0].starts_with("dsec cache warm base/none:1 base/a:1 base/b:1 base/other:2"));
  }
}

TEST_CASE("use of the disk is summed up by kind and by task set", "[registry][evict]") {
  Stocked stocked;
  put_layer(stocked.store, "workspace/w", "1", "meta w", random_bytes(kData, static_cast<unsigned>('a')));
  const std::vector<GroupUse> kinds = use_by_kind(stocked.store);
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[0].name == "base");
  CHECK(kinds[0].layers == 4);
  CHECK(kinds[0].bytes == 4 * kData + 4 * kDigests + 3 * 6 + 8);
  CHECK(kinds[0].bytes - kinds[0].alone == kData + kDigests);
  CHECK(kinds[1].name == "workspace");
  CHECK(kinds[1].alone == 6);

  const auto lock = [&](const std::string& name, const std::vector<Digest>& layers) {
    const fs::path file = stocked.scratch.directory.path() / name;
    std::ofstream(file) << "{}";
    stocked.store.register_lock(file, layers);
    return file.native();
  };
  const std::string one = lock("1.lock", {stocked.layers.at("a").digest, stocked.layers.at("b").digest});
  const std::string two = lock("2.lock", {stocked.layers.at("b").digest, Digest::of("gone")});
  fs::create_directories(stocked.scratch.home.cache() / "build");
  stocked.store.register_lock(stocked.scratch.home.cache() / "build/x", std::vector{stocked.layers.at("c").digest});
  const std::vector<GroupUse> sets = use_by_set(stocked.store);
  REQUIRE(sets.size() == 3);
  CHECK((sets[0].name == one && sets[0].layers == 2 && sets[0].bytes == 2 * kData + 2 * kDigests + 12));
  CHECK((sets[1].name == two && sets[1].layers == 1 && sets[1].missing == 1 && sets[1].alone == 0));
  CHECK((sets[2].name.empty() && sets[2].layers == 3));
}

}  // namespace
}  // namespace dsec::registry::test
