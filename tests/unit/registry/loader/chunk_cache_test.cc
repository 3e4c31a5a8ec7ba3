#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <iostream>
#include <thread>

#include "registry/loader/chunk_cache.h"
#include "tests/support/skip.h"
#include "tests/unit/registry/loader/test_source.h"

namespace dsec::registry::test {
namespace {

constexpr std::uint64_t kNoLimit = 1ull << 40;

struct Blobs {
  explicit Blobs(std::size_t size, unsigned seed = 1)
      : data(random_bytes(size, seed)),
        digests(digests_of(data), size),
        name{Digest::of(data), Digest::of(digests_of(data))} {}
  std::span<const std::byte> chunk(std::uint64_t number) const {
    return std::as_bytes(std::span(data)).subspan(number * kChunkSize, digests.size_of(number));
  }
  const std::string data;
  const ChunkDigests digests;
  const ServedName name;
};

std::string read(CachedBlob& cached, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  if (!cached.read(offset, std::as_writable_bytes(std::span(bytes)))) return "not here";
  return bytes;
}

// As if another boot had written the map.
void let_another_boot_have_written(const fs::path& map) {
  const UniqueFd file = open_file(map, O_WRONLY);
  REQUIRE(::pwrite(file.get(), "another-boot", 12, 64) == 12);
}

}  // namespace

TEST_CASE("what was put into the chunk cache comes out, also for the next process", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs blob(3 * kChunkSize + 100);
  {
    ChunkCache cache(directory.path() / "chunks", kNoLimit);
    const auto cached = cache.open(blob.name, blob.digests);
    CHECK(read(*cached, 0, 10) == "not here");
    REQUIRE(cached->write(1, blob.chunk(1)));
    REQUIRE(cached->write(3, blob.chunk(3)));
    CHECK(read(*cached, kChunkSize + 5, 1000) == blob.data.substr(kChunkSize + 5, 1000));
    CHECK(read(*cached, 2 * kChunkSize - 5, 10) == "not here");
    CHECK(cache.bytes() == kChunkSize + 100);
  }
  ChunkCache cache(directory.path() / "chunks", kNoLimit);
  const auto cached = cache.open(blob.name, blob.digests);
  CHECK(read(*cached, 3 * kChunkSize, 100) == blob.data.substr(3 * kChunkSize));
  CHECK_FALSE(cached->complete());
  cached->write(0, blob.chunk(0));
  cached->write(2, blob.chunk(2));
  CHECK(cached->complete());
  CHECK(read(*cached, 0, blob.data.size()) == blob.data);
}

TEST_CASE("chunks of another boot are hashed before they are served", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs blob(3 * kChunkSize);
  const fs::path data = directory.path() / "chunks" / blob.name.str(), map = data.native() + ".map";
  {
    ChunkCache cache(directory.path() / "chunks", kNoLimit);
    const auto cached = cache.open(blob.name, blob.digests);
    for (int chunk = 0; chunk < 3; ++chunk)
      cached->write(static_cast<std::uint64_t>(chunk), blob.chunk(static_cast<std::uint64_t>(chunk)));
  }
  {
    const UniqueFd file = open_file(data, O_WRONLY);
    REQUIRE(::pwrite(file.get(), "lost", 4, kChunkSize + 7) == 4);
  }
  let_another_boot_have_written(map);
  ChunkCache cache(directory.path() / "chunks", kNoLimit);
  auto cached = cache.open(blob.name, blob.digests);
  CHECK(read(*cached, 0, 100) == blob.data.substr(0, 100));
  CHECK(read(*cached, kChunkSize, 100) == "not here");
  CHECK_FALSE(cached->has(1));
  CHECK(read(*cached, 2 * kChunkSize, 100) == blob.data.substr(2 * kChunkSize, 100));
  // All has been seen: the next process of this boot believes it.
  CHECK(ChunkMap::parse(read_file(map), blob.data.size())->boot_id() == boot_id());
}

TEST_CASE("a blob with a chunk that another boot did not write is not complete", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs blob(3 * kChunkSize);
  const fs::path data = directory.path() / "chunks" / blob.name.str();
  {
    ChunkCache cache(directory.path() / "chunks", kNoLimit);
    const auto cached = cache.open(blob.name, blob.digests);
    for (std::uint64_t chunk = 0; chunk < 3; ++chunk) REQUIRE(cached->write(chunk, blob.chunk(chunk)));
  }
  {
    const UniqueFd file = open_file(data, O_WRONLY);
    REQUIRE(::pwrite(file.get(), "lost", 4, kChunkSize + 7) == 4);
  }
  let_another_boot_have_written(data.native() + ".map");
  ChunkCache cache(directory.path() / "chunks", kNoLimit);
  const auto cached = cache.open(blob.name, blob.digests);
  CHECK_FALSE(cached->pin());
  CHECK_FALSE(cached->complete());
  REQUIRE(cached->write(1, blob.chunk(1)));
  CHECK(cached->pin());
  CHECK(read_file(cached->file()) == blob.data);
}

TEST_CASE("a map that is not what it should be is thrown away with its chunks", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs blob(2 * kChunkSize);
  const fs::path map = directory.path() / "chunks" / (blob.name.str() + ".map");
  const std::string good = [&] {
    ChunkCache cache(directory.path() / "chunks", kNoLimit);
    const auto cached = cache.open(blob.name, blob.digests);
    cached->write(0, blob.chunk(0));
    return read_file(map);
  }();
  REQUIRE(ChunkMap::parse(good, blob.data.size()));
  std::vector<std::string> bad = {"", good.substr(0, 60), good + "x"};
  for (const std::size_t at : {0, 8, 12, 16, 30, 110}) {
    bad.push_back(good);
    bad.back()[at] ^= 2;
  }
  bad.push_back(good);
  bad.back().back() = static_cast<char>(0xff);  // chunks behind the end
  for (const std::string& text : bad) {
    CHECK_FALSE(ChunkMap::parse(text, blob.data.size()));
    write_file_atomic(map, text, 0600);
    ChunkCache cache(directory.path() / "chunks", kNoLimit);
    const auto cached = cache.open(blob.name, blob.digests);
    CHECK(read(*cached, 0, 10) == "not here");
    CHECK(cached->write(0, blob.chunk(0)));
    CHECK(read(*cached, 0, 10) == blob.data.substr(0, 10));
  }
}

TEST_CASE("the chunk cache stays below its limit, and drops what nobody reads first", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs old(4 * kChunkSize, 1), used(16 * kChunkSize, 2);
  ChunkCache cache(directory.path() / "chunks", 8 * kChunkSize);
  {
    const auto cached = cache.open(old.name, old.digests);
    for (std::uint64_t chunk = 0; chunk < 4; ++chunk) cached->write(chunk, old.chunk(chunk));
  }
  const auto cached = cache.open(used.name, used.digests);
  for (std::uint64_t chunk = 0; chunk < 16; ++chunk) {
    REQUIRE(cached->write(chunk, used.chunk(chunk)));
    CHECK(cache.bytes() <= 8 * kChunkSize);
    CHECK(read(*cached, chunk * kChunkSize, 10) == used.data.substr(chunk * kChunkSize, 10));
  }
  CHECK_FALSE(fs::exists(directory.path() / "chunks" / old.name.str()));
  std::uint64_t here = 0;
  for (std::uint64_t chunk = 0; chunk < 16; ++chunk)
    if (cached->has(chunk)) {
      ++here;
      CHECK(read(*cached, chunk * kChunkSize, kChunkSize) == used.data.substr(chunk * kChunkSize, kChunkSize));
    }
  CHECK(here >= 4);
  CHECK(here <= 8);
  struct stat status {};
  REQUIRE(::stat((directory.path() / "chunks" / used.name.str()).c_str(), &status) == 0);
  CHECK(static_cast<std::uint64_t>(status.st_blocks) * 512 <= 9 * kChunkSize);
}

TEST_CASE("a chunk whose bit cannot be taken away stays", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs blob(8 * kChunkSize, 1), other(8 * kChunkSize, 2);
  {
    ChunkCache cache(directory.path() / "chunks", 8 * kChunkSize);
    const auto cached = cache.open(blob.name, blob.digests), more = cache.open(other.name, other.digests);
    for (std::uint64_t chunk = 0; chunk < 8; ++chunk) REQUIRE(cached->write(chunk, blob.chunk(chunk)));
    // Files may not grow, nor be written, beyond their first 64 bytes; holes may be made.
    rlimit before = {};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit little = {64, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
    const bool written = more->write(0, other.chunk(0));
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, SIG_DFL);
    CHECK_FALSE(written);
  }
  // The next server believes the map.
  ChunkCache cache(directory.path() / "chunks", kNoLimit);
  const auto cached = cache.open(blob.name, blob.digests);
  for (std::uint64_t chunk = 0; chunk < 8; ++chunk)
    CHECK((read(*cached, chunk * kChunkSize, kChunkSize) == blob.data.substr(chunk * kChunkSize, kChunkSize)));
}

TEST_CASE("a pinned blob is not dropped, and can be moved away", "[registry][loader]") {
  const TempDirectory directory(fs::temp_directory_path());
  const Blobs blob(4 * kChunkSize, 1), other(8 * kChunkSize, 2);
  ChunkCache cache(directory.path() / "chunks", 8 * kChunkSize);
  const auto cached = cache.open(blob.name, blob.digests), more = cache.open(other.name, other.digests);
  CHECK_FALSE(cached->pin());
  for (std::uint64_t chunk = 0; chunk < 4; ++chunk) cached->write(chunk, blob.chunk(chunk));
  REQUIRE(cached->pin());
  for (std::uint64_t chunk = 0; chunk < 8; ++chunk) more->write(chunk, other.chunk(chunk));
  fs::rename(cached->file(), directory.path() / "moved");
  cached->release();
  CHECK(read_file(directory.path() / "moved") == blob.data);
  CHECK(read(*cached, 0, blob.data.size()) == blob.data);
}

TEST_CASE("a full disk keeps nothing, and harms nothing", "[registry][loader]") {
  if (::geteuid() != 0) SKIP_BECAUSE("mounting a small disk needs root");
  const TempDirectory directory(fs::temp_directory_path());
  if (::mount("none", directory.path().c_str(), "tmpfs", 0, "size=256k") != 0)
    SKIP_BECAUSE("no tmpfs can be mounted here");
  {
    const Blobs blob(8 * kChunkSize);
    ChunkCache cache(directory.path() / "chunks", kNoLimit);
    const auto cached = cache.open(blob.name, blob.digests);
    int kept = 0;
    for (std::uint64_t chunk = 0; chunk < 8; ++chunk) kept += cached->write(chunk, blob.chunk(chunk)) ? 1 : 0;
    CHECK(kept >= 2);
    CHECK(kept <= 4);
    for (std::uint64_t chunk = 0; chunk < 8; ++chunk) {
      const std::string found = read(*cached, chunk * kChunkSize, kChunkSize);
      CHECK((found == "not here" || found == blob.data.substr(chunk * kChunkSize, kChunkSize)));
    }
  }
  ::umount2(directory.path().c_str(), MNT_DETACH);
}

}  // namespace dsec::registry::test
