#include "registry/loader/loader.h"

#include <catch2/catch.hpp>
#include <future>

#include "tests/unit/registry/loader/test_source.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

constexpr std::uint64_t kNoLimit = 1ull << 40;

struct Answer {
  int error = 0;
  std::string bytes;
};

/// A loader of one blob.
struct Loading {
  explicit Loading(std::size_t size, std::vector<BlobOrigin> origins = {{"file:///a"}},
                   milliseconds timeout = milliseconds(60'000), std::uint64_t limit = kNoLimit)
      : data(random_bytes(size, 7)),
        source(data),
        cache(directory.path() / "chunks", limit),
        loader(source, cache, {.timeout = timeout, .requests = 4}, {},
               [this](const std::shared_ptr<LoadedBlob>&) { ++completed; }),
        blob(loader.open({{BlobRole::Data, Digest::of(data), size}, Digest::of("chunks"), "base/x", std::move(origins)},
                         digests_of(data))) {}

  std::future<Answer> begin(std::uint64_t offset, std::size_t length) {
    auto promise = std::make_shared<std::promise<Answer>>();
    loader.read(blob, offset, length, [promise](int error, std::span<const std::byte> bytes) {
      promise->set_value({error, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
    });
    return promise->get_future();
  }
  Answer read(std::uint64_t offset, std::size_t length) { return begin(offset, length).get(); }
  std::string told() {
    std::string all;
    for (const LoaderProblem& problem : loader.problems()) all += problem.what + "\n";
    return all;
  }

  TempDirectory directory{fs::temp_directory_path()};
  const std::string data;
  TestSource source;
  ChunkCache cache;
  std::atomic<int> completed{0};
  Loader loader;
  std::shared_ptr<LoadedBlob> blob;
};

}  // namespace

TEST_CASE("a read brings the chunks it touches, and the next one of them asks nobody", "[registry][loader]") {
  Loading loading(10 * kChunkSize + 5);
  CHECK(loading.read(kChunkSize - 10, 20).bytes == loading.data.substr(kChunkSize - 10, 20));
  CHECK(loading.source.bytes_read == 2 * kChunkSize);
  CHECK(loading.source.requests == 1);
  CHECK(loading.read(10, kChunkSize).bytes == loading.data.substr(10, kChunkSize));
  CHECK(loading.source.requests == 1);
  CHECK(loading.read(10 * kChunkSize, 4096).bytes == loading.data.substr(10 * kChunkSize));
  CHECK(loading.read(loading.data.size(), 4096).bytes.empty());
  CHECK(loading.blob->fetched() == 2 * kChunkSize + 5);
}

TEST_CASE("readers who wait for the same chunk wait for one request", "[registry][loader]") {
  Loading loading(4 * kChunkSize);
  loading.source.stall(true);
  std::vector<std::future<Answer>> answers;
  for (std::size_t i = 0; i < 20; ++i) answers.push_back(loading.begin(i * 4096, 4096));
  loading.source.stall(false);
  for (std::size_t i = 0; i < answers.size(); ++i) CHECK(answers[i].get().bytes == loading.data.substr(i * 4096, 4096));
  CHECK(loading.source.reads_of_chunk[0] == 1);
}

TEST_CASE("a blob that is read in order is read ahead, and told when it is complete", "[registry][loader]") {
  Loading loading(64 * kChunkSize);
  for (std::uint64_t at = 0; at < loading.data.size(); at += 64 << 10)
    REQUIRE(loading.read(at, 64 << 10).bytes == loading.data.substr(at, 64 << 10));
  CHECK(loading.source.bytes_read == loading.data.size());
  CHECK(loading.source.requests <= 32);
  for (int i = 0; i < 1000 && loading.completed == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  CHECK(loading.completed == 1);
  loading.loader.tell_again(loading.blob);
  CHECK(loading.completed == 2);
}

TEST_CASE("scattered reads are not read ahead", "[registry][loader]") {
  Loading loading(64 * kChunkSize);
  for (const std::uint64_t chunk : {50, 3, 20, 41, 9, 33}) REQUIRE(loading.read(chunk * kChunkSize, 4096).error == 0);
  CHECK(loading.source.bytes_read == 6 * kChunkSize);
}

TEST_CASE("a registry with other bytes is an error of that chunk alone, and told by name", "[registry][loader]") {
  Loading loading(4 * kChunkSize);
  loading.source.liar = "file:///a";
  loading.source.wrong_byte = kChunkSize + 17;
  // Asked for together: the good ones come all the same.
  CHECK(loading.read(0, 2 * kChunkSize).error == EIO);
  CHECK(loading.read(0, kChunkSize).bytes == loading.data.substr(0, kChunkSize));
  CHECK(loading.read(kChunkSize, 4096).error == EIO);
  CHECK_THAT(loading.told(), Contains("of layer base/x from file:///a") && Contains("are not those of the layer"));
  loading.source.liar.clear();
  CHECK(loading.read(kChunkSize, 4096).bytes == loading.data.substr(kChunkSize, 4096));
}

TEST_CASE("where one registry fails or lies the next is asked", "[registry][loader]") {
  Loading loading(4 * kChunkSize, {{"file:///dead"}, {"file:///liar"}, {"file:///good"}});
  loading.source.dead = "file:///dead";
  loading.source.liar = "file:///liar";
  CHECK(loading.read(0, 4096).bytes == loading.data.substr(0, 4096));
  CHECK_THAT(loading.told(), Contains("from file:///dead: it is away"));
}

TEST_CASE("a registry that failed is asked last from then on", "[registry][loader]") {
  Loading loading(16 * kChunkSize, {{"file:///dead"}, {"file:///good"}});
  loading.source.dead = "file:///dead";
  CHECK(loading.read(0, 4096).error == 0);
  CHECK(loading.source.requests == 2);
  CHECK(loading.read(9 * kChunkSize, 4096).error == 0);
  CHECK(loading.source.requests == 3);
}

TEST_CASE("a registry that is known by now heals a blob all of whose others fail", "[registry][loader]") {
  Loading loading(16 * kChunkSize);
  loading.source.dead = "file:///a";
  CHECK(loading.read(0, 4096).error == EIO);
  loading.source.found_since = {{"file:///a"}, {"file:///mirror"}};
  CHECK(loading.read(0, 4096).bytes == loading.data.substr(0, 4096));
  const std::uint64_t before = loading.source.requests;
  CHECK(loading.read(9 * kChunkSize, 4096).error == 0);
  CHECK(loading.source.requests == before + 1);
}

TEST_CASE("a registry that fails and then stalls leaves requests to others", "[registry][loader]") {
  Loading loading(32 * kChunkSize);
  const auto other = loading.loader.open({{BlobRole::Data, Digest::of(loading.data), loading.data.size()},
                                          Digest::of("others"),
                                          "base/y",
                                          {{"file:///b"}}},
                                         digests_of(loading.data));
  loading.source.dead = "file:///a";
  CHECK(loading.read(0, 4096).error == EIO);
  loading.source.dead.clear();
  loading.source.stall_registry("file:///a");
  std::vector<std::future<Answer>> stalled;
  for (const std::uint64_t chunk : {30, 3, 20, 11, 7, 25, 15, 0})
    stalled.push_back(loading.begin(chunk * kChunkSize, 4096));
  std::promise<int> answered;
  loading.loader.read(other, 0, 4096, [&](int error, std::span<const std::byte>) { answered.set_value(error); });
  CHECK(answered.get_future().get() == 0);
  loading.source.stall_registry("");
  for (auto& each : stalled) CHECK(each.get().error == 0);
}

TEST_CASE("registries that failed come last, until it is forgotten or they answer", "[registry][loader]") {
  OriginHealth health(std::chrono::hours(1)), forgetful(milliseconds(0));
  const std::vector<BlobOrigin> origins = {{"a"}, {"b"}, {"c"}};
  const auto order = [&](const OriginHealth& of) {
    std::string names;
    for (const BlobOrigin& origin : of.in_order(origins)) names += origin.registry;
    return names;
  };
  CHECK(order(health) == "abc");
  health.tell("a", false);
  health.tell("b", false);
  health.tell("b", true);
  CHECK(order(health) == "bca");
  CHECK_FALSE(health.all_failed_lately(origins));
  forgetful.tell("a", false);
  CHECK(order(forgetful) == "abc");
}

TEST_CASE("a dead registry is an error, until it is back", "[registry][loader]") {
  Loading loading(4 * kChunkSize);
  loading.source.dead = "file:///a";
  CHECK(loading.read(0, 4096).error == EIO);
  loading.source.dead.clear();
  CHECK(loading.read(0, 4096).bytes == loading.data.substr(0, 4096));
}

TEST_CASE("a stalled registry is an error in time, for each reader", "[registry][loader]") {
  Loading loading(4 * kChunkSize, {{"file:///a"}}, milliseconds(200));
  loading.source.stall(true);
  auto first = loading.begin(0, 4096), second = loading.begin(0, 2 * kChunkSize);
  CHECK(first.get().error == EIO);
  CHECK(second.get().error == EIO);
  CHECK(loading.read(8192, 4096).error == EIO);
  CHECK_THAT(loading.told(), Contains("was not answered in time"));
  loading.source.stall(false);
  CHECK(loading.read(0, 4096).bytes == loading.data.substr(0, 4096));
}

TEST_CASE("a read that waits long keeps nothing of those that are answered meanwhile", "[registry][loader]") {
  Loading loading(8 * kChunkSize);
  loading.source.stall_chunk(0);
  auto slow = loading.begin(0, 4096);
  auto token = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = token;
  std::promise<int> answered;
  loading.loader.read(loading.blob, 5 * kChunkSize, 4096,
                      [token, &answered](int error, std::span<const std::byte>) { answered.set_value(error); });
  token.reset();
  CHECK(answered.get_future().get() == 0);
  for (int i = 0; i < 1000 && !kept.expired(); ++i) std::this_thread::sleep_for(milliseconds(10));
  CHECK(kept.expired());
  CHECK(slow.wait_for(milliseconds(0)) == std::future_status::timeout);
  loading.source.stall_chunk({});
  CHECK(slow.get().bytes == loading.data.substr(0, 4096));
}

TEST_CASE("without room for a cache reads go on", "[registry][loader]") {
  Loading loading(16 * kChunkSize, {{"file:///a"}}, milliseconds(60'000), 0);
  for (std::uint64_t at = 0; at < loading.data.size(); at += 64 << 10)
    REQUIRE(loading.read(at, 64 << 10).bytes == loading.data.substr(at, 64 << 10));
  // The last chunks are in memory: pieces of one do not cost a request each.
  CHECK(loading.source.bytes_read == loading.data.size());
}

TEST_CASE("digests that are not those of the blob's size are refused", "[registry][loader]") {
  Loading loading(4 * kChunkSize);
  CHECK_THROWS_AS(
      loading.loader.open({{BlobRole::Data, Digest::of("x"), 5 * kChunkSize}, Digest::of("c"), "base/x", {}},
                          digests_of(loading.data)),
      Error);
}

}  // namespace dsec::registry::test
