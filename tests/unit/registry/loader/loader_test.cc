#include "registry/loader/loader.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "tests/unit/registry/loader/loading.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

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

TEST_CASE("nobody is read ahead of further than they have come, nor while they find all", "[registry][loader]") {
  using Read = ReadAhead::Read;
  const auto some = [](std::uint64_t first, std::uint64_t count) { return std::optional(std::pair(first, count)); };
  ReadAhead ahead(kChunkSize);
  for (const std::uint64_t chunk : {0, 1, 2}) CHECK_FALSE(ahead.after(chunk, chunk, Read::Waited));
  CHECK(ahead.after(3, 3, Read::Waited) == some(4, 1));
  CHECK(ahead.after(4, 4, Read::FoundAll) == some(5, 2));
  // As a list has brought it: until it has ended.
  for (std::uint64_t chunk = 100; chunk < 120; ++chunk) CHECK_FALSE(ahead.after(chunk, chunk, Read::FoundAll));
  CHECK(ahead.after(120, 120, Read::Waited) == some(121, 1));
  for (std::uint64_t chunk = 121; chunk < 2000; ++chunk)
    if (const auto more = ahead.after(chunk, chunk, Read::FoundAll))
      CHECK((more->second <= ReadAhead::kMost / kChunkSize && more->first + more->second <= chunk + 1 + 128));
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

TEST_CASE("a registry that keeps all its requests waiting does not keep readers from another", "[registry][loader]") {
  Loading loading(64 * kChunkSize, {{"file:///a"}});
  loading.source.stall_registry("file:///a");
  std::vector<std::future<Answer>> stuck;
  for (std::uint64_t i = 0; i < 8; ++i) stuck.push_back(loading.begin(i * 8 * kChunkSize, 1000));
  while (loading.source.requests < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto other = loading.loader.open(
      {{BlobRole::Data, Digest::of("other"), loading.data.size()}, Digest::of("chunks"), "base/y", {{"file:///b"}}},
      digests_of(loading.data));
  std::promise<int> promise;
  loading.loader.read(other, 0, 1000, [&](int error, std::span<const std::byte>) { promise.set_value(error); });
  std::future<int> answer = promise.get_future();
  const bool in_time = answer.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  CHECK(in_time);
  // Never more to the one that does not answer.
  if (in_time) CHECK(loading.source.requests == 5);
  loading.source.stall_registry("");
  CHECK(answer.get() == 0);
  for (std::future<Answer>& each : stuck) CHECK(each.get().error == 0);
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
