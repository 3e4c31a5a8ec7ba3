// The blobs of a home behind the filesystem: which are held, and what layers that lie get.
#include "registry/loader/served_blobs.h"

#include <catch2/catch.hpp>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "registry/layout/layout.h"
#include "tests/unit/registry/loader/on_demand_layer.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

/// A server of a layer, without the kernel.
struct Serving : OnDemand {
  explicit Serving(bool fill = false) : fill_(fill) {}
  std::pair<int, std::string> read(const ServedName& of, std::uint64_t offset, std::size_t size) {
    std::promise<std::pair<int, std::string>> promise;
    blobs.read(of, offset, size, [&](int error, std::span<const std::byte> bytes) {
      promise.set_value({error, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
    });
    return promise.get_future().get();
  }
  /// What of it is in the cache; empty: it is not held.
  std::optional<std::uint64_t> here() {
    const Json bytes = blobs.status()["blobs"][0]["here"];
    return bytes.is_null() ? std::nullopt : std::optional(bytes.get<std::uint64_t>());
  }
  std::size_t cached_files() {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(to.store.chunks()), fs::directory_iterator()));
  }

  const bool fill_;
  const ServedName name{blob().digest, chunks()};
  const UniqueFd memory = SharedState::make("test");
  SharedState state{memory};
  std::string told;
  const std::unique_ptr<ChunkSource> source =
      registry_source([this](const std::string& what) { told += what; }, {.stall = std::chrono::seconds(5)});
  ChunkCache cache{to.store.chunks(), 1ull << 40};
  ServedBlobs blobs{to.store, state, *source, cache, {}, fill_, [this](const std::string& what) { told += what; }};
  const std::uint64_t inode = state.inode_of(name).value();
};

}  // namespace

TEST_CASE("a blob that nobody has open is let go, and taken up again with what is here", "[registry][loader]") {
  Serving serving;
  CHECK(serving.read(serving.name, 5, 100).second == serving.data.substr(5, 100));
  CHECK(serving.here() == kChunkSize);
  serving.blobs.closed(serving.name);
  CHECK_FALSE(serving.here());
  serving.blobs.closed(serving.name);
  CHECK(serving.read(serving.name, 200, 100).second == serving.data.substr(200, 100));
  CHECK(serving.here() == kChunkSize);
  CHECK(serving.state.fetched(serving.inode) == kChunkSize);
}

TEST_CASE("a blob that is opened is fetched as its list says, before anybody reads it", "[registry][loader]") {
  Serving serving;
  serving.to.store.keep_prefetch_list({serving.layer.digest, {{serving.blob().digest, {{1, 1}, {0, 1}}}}},
                                      serving.layer.manifest);
  serving.blobs.opened(serving.name);
  for (int i = 0; i < 1000 && serving.here() != 2 * kChunkSize; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(serving.here() == 2 * kChunkSize);
  CHECK(canonical_json(serving.blobs.record()["blobs"][0]["chunks"]) == "[]");
  serving.read(serving.name, 2 * kChunkSize, 1);
  CHECK(canonical_json(serving.blobs.record()["blobs"]) ==
        R"([{"chunks":[[2,1]],"digest":")" + serving.blob().digest.str() + R"("}])");
}

TEST_CASE("a blob that is to be filled becomes one of the store when it is opened", "[registry][loader]") {
  Serving serving(true);
  serving.blobs.opened(serving.name);
  for (int i = 0; i < 1000 && !serving.to.store.has_blob(serving.blob().digest); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(serving.to.store.has_blob(serving.blob().digest));
}

TEST_CASE("a size that the chunk digests do not bear out makes no file", "[registry][loader]") {
  Serving serving;
  const Blob huge{BlobRole::Data, Digest::of("some blob"), 1ull << 50};
  const ServedName name{huge.digest, serving.chunks()};
  serving.to.store.hold_on_demand(*serving.to.store.begin_session(), huge, serving.chunks(), {"file:///liar"});
  serving.blobs.opened(name);
  CHECK(serving.read(name, 1ull << 40, 4096).first == EIO);
  CHECK_THAT(serving.told, Contains("its chunk digests are 4"));
  CHECK(serving.cached_files() == 0);
}

TEST_CASE("a blob whose chunk digests are too many comes whole, as far as there is room", "[registry][loader]") {
  OnDemand made;
  LayerManifest manifest = made.layer.manifest;
  manifest.images[0].blobs = {
      {BlobRole::Meta, Digest::of("meta"), 4},
      {BlobRole::Data, Digest::of("huge"), 1ull << 60},
      {BlobRole::Chunks, Digest::of("digests"), chunks_of(1ull << 60, kChunkSize) * kRawDigestSize}};
  const fs::path file = made.from.registry_path() / manifest_name(manifest.digest());
  fs::create_directories(file.parent_path());
  write_file_atomic(file, manifest.canonical());
  try {
    pull(made.to.store, LayerRef::of(manifest.digest()), made.address, made.progress, PullMode::OnDemand);
    FAIL("there is no room for it");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("and the store has"));
  }
  CHECK_FALSE(made.to.store.on_demand(Digest::of("huge")));
}

}  // namespace dsec::registry::test
