// What a loader fetches although nobody waits for it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/unit/registry/loader/loading.h"

namespace dsec::registry::test {
namespace {

using std::chrono::milliseconds;

/// Whether something comes true before long.
template <typename Check>
bool soon(Check&& check) {
  for (int i = 0; i < 2000 && !check(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return check();
}

/// What the source was asked for in all, once that does not change any more.
std::uint64_t settled(Loading& loading, milliseconds quiet = milliseconds(100)) {
  std::uint64_t before = ~0ull;
  while (before != loading.source.bytes_read) {
    before = loading.source.bytes_read;
    std::this_thread::sleep_for(quiet);
  }
  return before;
}

}  // namespace

TEST_CASE("a record has chunks in the order in which they were first read", "[registry][loader]") {
  ReadRecord record(10);
  record.note(4, 5);
  record.note(6, 6);
  record.note(1, 1);
  record.note(0, 5);
  record.note(9, 9);
  CHECK(record.runs() == std::vector<ChunkRun>{{4, 3}, {1, 1}, {0, 1}, {2, 2}, {9, 1}});
  CHECK(record.count() == 8);
}

TEST_CASE("what is read is recorded, wherever it comes from", "[registry][loader]") {
  Loading loading(20 * kChunkSize);
  REQUIRE(loading.read(7 * kChunkSize, 4096).error == 0);
  REQUIRE(loading.read(2 * kChunkSize - 4096, 8192).error == 0);
  REQUIRE(loading.read(7 * kChunkSize + 8192, 4096).error == 0);
  loading.loader.prefetch(loading.blob, {{12, 1}});
  REQUIRE(soon([&] { return loading.blob->cache().has(12); }));
  CHECK(loading.loader.record(*loading.blob) == std::vector<ChunkRun>{{7, 1}, {1, 2}});
  REQUIRE(loading.read(12 * kChunkSize, 4096).error == 0);
  CHECK(loading.loader.record(*loading.blob) == std::vector<ChunkRun>{{7, 1}, {1, 2}, {12, 1}});
}

TEST_CASE("a list is fetched batch by batch, what lies close together at once, and nothing else",
          "[registry][loader]") {
  Loading loading(512 * kChunkSize);
  REQUIRE(loading.read(441 * kChunkSize, 1).error == 0);
  loading.source.stall(true);
  // The first two have more than a batch.
  loading.loader.prefetch(loading.blob, {{400, 100}, {0, 40}, {204, 1}, {200, 2}, {100, 1}});
  loading.source.stall(false);
  REQUIRE(soon([&] { return loading.blob->cache().present_bytes() == 146 * kChunkSize; }));
  CHECK(settled(loading) == 146 * kChunkSize);
  for (const std::uint64_t chunk : {0, 39, 400, 499, 100, 200, 202, 203, 204}) CHECK(loading.blob->cache().has(chunk));
  // 441 was here; at most 1 MiB a request.
  std::vector<std::uint64_t> order(loading.source.order.begin() + 1, loading.source.order.end());
  CHECK(order.size() == 12);
  // Of the first batch, of which two are under way at a time and may overtake each other.
  CHECK(std::find(order.begin(), order.end(), 0) - order.begin() < 9);
  for (const std::uint64_t chunk : {100, 200}) CHECK(std::find(order.begin(), order.end(), chunk) - order.begin() >= 9);
  const std::uint64_t before = loading.source.requests;
  CHECK(loading.read(3 * kChunkSize, 2 * kChunkSize).bytes == loading.data.substr(3 * kChunkSize, 2 * kChunkSize));
  CHECK(loading.source.requests == before);
}

TEST_CASE("a list of pieces is fetched of a blob whose chunks are larger", "[registry][loader]") {
  const std::string data = random_bytes(10 * kLargeChunkSize + 5, 7);
  std::string digests;
  for (std::size_t at = 0; at < data.size(); at += kLargeChunkSize)
    digests += raw_digest(Digest::of(data.substr(at, kLargeChunkSize)));
  Loading loading(kChunkSize);
  TestSource source(data);
  Loader loader(source, loading.cache, {.requests = 4});
  const auto blob = loader.open(
      {{BlobRole::Data, Digest::of(data), data.size()}, Digest::of(digests), "base/old", {{"file:///a"}}}, digests);
  CHECK(blob->chunk_size() == kLargeChunkSize);
  loader.prefetch(blob, {{5, 2}, {40, 1}});
  REQUIRE(soon([&] { return blob->cache().has(1) && blob->cache().has(10); }));
  CHECK_FALSE(blob->cache().has(0));
  std::promise<std::string> answer;
  loader.read(blob, kLargeChunkSize + 7, 20, [&](int, std::span<const std::byte> bytes) {
    answer.set_value({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
  CHECK(answer.get_future().get() == data.substr(kLargeChunkSize + 7, 20));
  CHECK(loader.record(*blob) == std::vector<ChunkRun>{{4, 4}});
}

TEST_CASE("who reads does not wait for a list", "[registry][loader]") {
  Loading loading(256 * kChunkSize);
  loading.source.stall_registry("file:///b");
  const auto listed = loading.loader.open({{BlobRole::Data, Digest::of(loading.data), loading.data.size()},
                                           Digest::of("others"),
                                           "base/y",
                                           {{"file:///b"}}},
                                          digests_of(loading.data));
  loading.loader.prefetch(listed, {{0, 200}});
  for (const std::uint64_t chunk : {250, 100, 220, 30}) CHECK(loading.read(chunk * kChunkSize, 4096).error == 0);
  loading.source.stall_registry("");
}

TEST_CASE("who reads what is being fetched asks nobody again", "[registry][loader]") {
  Loading loading(64 * kChunkSize);
  loading.source.stall(true);
  loading.loader.prefetch(loading.blob, {{8, 4}});
  REQUIRE(soon([&] { return loading.source.requests == 1; }));
  auto answer = loading.begin(9 * kChunkSize, 4096);
  loading.source.stall(false);
  CHECK(answer.get().bytes == loading.data.substr(9 * kChunkSize, 4096));
  CHECK(loading.source.reads_of_chunk[9] == 1);
}

TEST_CASE("a blob that is filled comes wholly, its list first", "[registry][loader]") {
  Loading loading(64 * kChunkSize + 9);
  loading.source.stall(true);
  loading.loader.prefetch(loading.blob, {{50, 4}});
  loading.loader.fill(loading.blob);
  loading.source.stall(false);
  REQUIRE(soon([&] { return loading.completed == 1; }));
  // Two are under way at a time, and may overtake each other.
  const auto& order = loading.source.order;
  CHECK(std::find(order.begin(), order.end(), 50) - order.begin() <= 3);
  CHECK(settled(loading) == loading.data.size());
  // Asked for again there is nothing to do.
  loading.loader.fill(loading.blob);
  CHECK(settled(loading) == loading.data.size());
}

TEST_CASE("a blob of which more than a share is read comes wholly", "[registry][loader]") {
  Loading loading(100 * kChunkSize, {{"file:///a"}}, milliseconds(60'000), kNoLimit, 0.1);
  for (std::uint64_t chunk = 0; chunk < 10; ++chunk) REQUIRE(loading.read(chunk * 7 * kChunkSize, 4096).error == 0);
  CHECK(settled(loading) == 10 * kChunkSize);
  REQUIRE(loading.read(95 * kChunkSize, 4096).error == 0);
  CHECK(soon([&] { return loading.completed == 1; }));
}

TEST_CASE("filling a blob takes nothing out of a full cache that somebody uses", "[registry][loader]") {
  Loading loading(64 * kChunkSize, {{"file:///a"}}, milliseconds(60'000), 20 * kChunkSize);
  for (std::uint64_t chunk = 48; chunk < 64; chunk += 2) REQUIRE(loading.read(chunk * kChunkSize, 4096).error == 0);
  loading.loader.fill(loading.blob);
  const std::uint64_t bytes = settled(loading);
  CHECK(bytes < 64 * kChunkSize);
  CHECK(loading.cache.bytes() <= 20 * kChunkSize);
  for (std::uint64_t chunk = 48; chunk < 64; chunk += 2) CHECK(loading.blob->cache().has(chunk));
  // Readers go on, and get their place.
  CHECK(loading.read(40 * kChunkSize, 4096).bytes == loading.data.substr(40 * kChunkSize, 4096));
}

TEST_CASE("filling ends when the registry fails, and reading goes on when it is back", "[registry][loader]") {
  Loading loading(64 * kChunkSize);
  loading.source.dead = "file:///a";
  loading.loader.fill(loading.blob);
  REQUIRE(soon([&] { return loading.source.requests >= 3; }));
  settled(loading, milliseconds(1000));
  // Each of those that were under way tried three times.
  CHECK(loading.source.requests <= 6);
  loading.source.dead.clear();
  CHECK(loading.read(0, 4096).bytes == loading.data.substr(0, 4096));
}

TEST_CASE("a blob that is left is not fetched any further", "[registry][loader]") {
  Loading loading(256 * kChunkSize);
  loading.source.stall(true);
  loading.loader.fill(loading.blob);
  loading.loader.leave(*loading.blob);
  loading.source.stall(false);
  // Of four requests that may have been under way, of 2 MiB each.
  CHECK(settled(loading) <= 4 * (2 << 20));
  loading.loader.fill(loading.blob);
  CHECK(soon([&] { return loading.completed == 1; }));
}

}  // namespace dsec::registry::test
