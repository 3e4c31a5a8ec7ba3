// Reading through rings of the 3FS client, whose other end is a server of ours: what a cluster adds (RDMA, its storage,
// its delays) is not tested here.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "registry/directory/file_copy.h"
#include "registry/directory/usrbio_reader.h"
#include "registry/layout/layout.h"
#include "registry/loader/chunk_source.h"
#include "registry/pull.h"
#include "tests/support/skip.h"
#include "tests/support/three_fs_cluster.h"

using namespace dsec;
using namespace dsec::registry;
using Catch::Matchers::Contains;
using dsec::registry::test::Cluster;
using dsec::registry::test::has_fuse;
using dsec::test::RingFault;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kNoFuse = "it needs root and /dev/fuse";

std::string random_text(std::size_t size) {
  std::mt19937_64 random(size);
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(random());
  return text;
}

// Several rounds of a ring, and a piece of another length at the end.
const std::string& data() {
  static const std::string text = random_text(37 * UsrbioRing::kPiece + 12'345);
  return text;
}

int shared_files() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/dev/shm"))
    count += entry.path().filename().native().starts_with("hf3fs-iov-");
  return count;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file on a fake 3FS, read through rings as far as they go.
struct Reading {
  TempDirectory directory{fs::temp_directory_path()};
  dsec::test::FakeThreeFs three_fs{directory.path()};
  UniqueFd file;
  std::string notes;
  UsrbioReader reader{directory.path(), [this](const std::string& note) { notes += note + "\n"; }, milliseconds(300)};

  Reading() {
    three_fs.put_from_elsewhere("blob", data());
    file = open_file(directory.path() / "blob", O_RDONLY);
  }
  std::string rings(std::uint64_t offset = 0, std::uint64_t length = data().size()) {
    std::string got;
    const std::uint64_t given =
        reader.read(file.get(), offset, length, [&](std::span<const std::byte> piece) { got += text_of(piece); });
    CHECK(given == got.size());
    return got;
  }
};

struct Puller {
  engine::Home home;
  LocalStore store{home};
  explicit Puller(Cluster& cluster) : home(engine::Home::open(cluster.directory.path() / "other")) {}

  std::string pull(Cluster& cluster) {
    try {
      registry::pull(store, LayerRef::parse("base/x:1"), cluster.address, cluster.warnings);
      return read_file(store.blob_path(Digest::of(data()))) == data() ? "the same" : "something else";
    } catch (const Error& error) {
      return error.message();
    }
  }
};

void publish_x(Cluster& cluster) {
  cluster.put("base/x", data());
  cluster.publish_to(cluster.address, {LayerRef::parse("base/x:1")});
}

}  // namespace

TEST_CASE("what is pulled from 3FS comes through rings, and nothing of them stays", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Cluster cluster;
  publish_x(cluster);
  const std::uint64_t before = cluster.three_fs.bytes_read;
  CHECK(cluster.three_fs.rings().bytes == 0);
  CHECK(Puller(cluster).pull(cluster) == "the same");
  CHECK(cluster.three_fs.rings().bytes == data().size());
  CHECK(cluster.three_fs.bytes_read - before < 64 << 10);
  CHECK(cluster.warnings.text() == "");
  CHECK(cluster.three_fs.rings().registered() == 0);
  CHECK(shared_files() == 0);
}

TEST_CASE("any part of a file comes through a ring, of any length", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Reading reading;
  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 1}, {1, UsrbioRing::kPiece}, {4095, 17 * UsrbioRing::kPiece}, {data().size() - 5, 5}, {7, 0}})
    CHECK(reading.rings(offset, length) == data().substr(offset, length));
  CHECK(reading.notes == "");
  CHECK(reading.three_fs.bytes_read == 0);
}

TEST_CASE("pieces for the loader come through few rings and one descriptor of a blob", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Cluster cluster;
  publish_x(cluster);
  const BlobOrigin origin{cluster.address.url(), false};
  const RemoteBlob blob{{BlobRole::Data, Digest::of(data()), data().size()}, Digest::of(""), "base/x", {origin}};
  std::string notes;
  const auto source = registry_source([&](const std::string& note) { notes += note; }, {std::chrono::seconds(5)});
  const auto read = [&](std::uint64_t chunk) {
    std::vector<std::byte> bytes(std::min<std::size_t>(4 * kLargeChunkSize, data().size() - chunk * kLargeChunkSize));
    source->read(origin, blob, chunk * kLargeChunkSize, bytes);
    return text_of(bytes) == data().substr(chunk * kLargeChunkSize, bytes.size());
  };
  CHECK(read(0));
  const std::uint64_t opened = cluster.three_fs.opened, before = cluster.three_fs.bytes_read;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 12; ++thread)
    threads.emplace_back([&, thread] {
      for (std::uint64_t chunk = thread; chunk * kLargeChunkSize < data().size(); chunk += 12)
        if (!read(chunk)) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(notes == "");
  CHECK(cluster.three_fs.opened == opened);
  CHECK(cluster.three_fs.rings().registered() <= 2 * 4);
  // The last chunk has no size that is worth a ring.
  CHECK(cluster.three_fs.bytes_read - before <= kLargeChunkSize);
}

TEST_CASE("whatever the other end of a ring does, no byte is wrong and nothing hangs", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  struct Case {
    RingFault fault;
    std::string told;
  };
  for (const Case& now : {
           Case{RingFault::Refuses, "Too many open files (EMFILE)"},
           Case{RingFault::Deaf, "answered nothing for 300 ms"},
           Case{RingFault::StopsHalfway, "answered nothing for 300 ms"},
           Case{RingFault::Negative, "the client answers Remote I/O error (EREMOTEIO)"},
           Case{RingFault::Absurd, "the ring holds what cannot be: a result of -9223372036854775808"},
           Case{RingFault::Short, "the client gives 1048575 bytes of 1048576"},
           Case{RingFault::TooLong, "1048577 bytes where 1048576 were asked for"},
           Case{RingFault::WrongSlot, ""},
           Case{RingFault::SlotOutside, "a result of slot 1017"},
           Case{RingFault::WrongTag, "a result that nothing was asked for"},
           Case{RingFault::Twice, "a result that nothing was asked for"},
           Case{RingFault::HeadOutside, "position 1000000 of its results"},
           Case{RingFault::TailOutside, "position -7 of its submissions"},
           Case{RingFault::FullForever, "no room although nothing is under way"},
       }) {
    Reading reading;
    CAPTURE(static_cast<int>(now.fault), now.told);
    reading.three_fs.rings().fault = now.fault;
    const auto start = std::chrono::steady_clock::now();
    const std::string got = reading.rings();
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(3));
    CHECK(got.size() < data().size());
    CHECK(got == data().substr(0, got.size()));
    CHECK_THAT(reading.notes, Contains("through FUSE, past the rings of the 3FS client") && Contains(now.told));
    CHECK(reading.three_fs.rings().registered() == 0);
    CHECK(shared_files() == 0);
  }
}

TEST_CASE("a ring full of garbage is a fault, and no more than that", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  for (int round = 0; round < 10; ++round) {
    Reading reading;
    reading.three_fs.rings().fault = RingFault::Garbage;
    const std::string got = reading.rings();
    CHECK(got.size() < data().size());
    CHECK(got == data().substr(0, got.size()));
    CHECK(reading.notes != "");
  }
}

TEST_CASE("a pull goes on through FUSE where a ring broke off", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Cluster cluster;
  publish_x(cluster);
  const std::uint64_t before = cluster.three_fs.bytes_read;
  cluster.three_fs.rings().fault = RingFault::Short;
  CHECK(Puller(cluster).pull(cluster) == "the same");
  CHECK(cluster.three_fs.bytes_read - before >= data().size());
  CHECK_THAT(cluster.warnings.text(), Contains("through FUSE, past the rings of the 3FS client"));
}

TEST_CASE("wrong bytes of a ring are read again through FUSE before a blob counts as damaged",
          "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Cluster cluster;
  publish_x(cluster);
  cluster.three_fs.rings().fault = RingFault::WrongBytes;
  CHECK(Puller(cluster).pull(cluster) == "the same");
  CHECK_THAT(cluster.warnings.text(), Contains("what came had the wrong digest"));
}

TEST_CASE("wrong chunks of a ring are read again through FUSE by the loader", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Cluster cluster;
  publish_x(cluster);
  cluster.three_fs.rings().fault = RingFault::WrongBytes;
  const BlobOrigin origin{cluster.address.url(), false};
  const RemoteBlob blob{{BlobRole::Data, Digest::of(data()), data().size()}, Digest::of(""), "base/x", {origin}};
  std::string raw, notes;
  for (std::size_t at = 0; at < data().size(); at += kChunkSize)
    raw += raw_digest(Digest::of(data().substr(at, kChunkSize)));
  const ChunkDigests digests(raw, data().size());
  const auto source = registry_source([&](const std::string& note) { notes += note; }, {std::chrono::seconds(5)});
  OriginHealth health;
  std::vector<std::byte> bytes(4 * kChunkSize);
  int failed = 0;
  read_chunks(*source, health, {blob, digests, 8, bytes}, {[&](const Error&) { ++failed; }, [] { return true; }});
  CHECK(text_of(bytes) == data().substr(8 * kChunkSize, bytes.size()));
  CHECK(failed == 1);
  CHECK_THAT(notes, Contains("what came had the wrong digest"));
}

TEST_CASE("lost chunks are never taken for zeros of a file", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  for (const bool old_client : {false, true}) {
    Cluster cluster;
    publish_x(cluster);
    const fs::path blob = fs::path("layers") / blob_name(Digest::of(data()));
    if (old_client) cluster.three_fs.rings().fault = RingFault::ZerosForHoles;
    cluster.three_fs.lose(blob, 5 << 20, 1 << 20);
    CHECK_THAT(Puller(cluster).pull(cluster), Contains("the registry's copy is damaged"));
    cluster.three_fs.lose(blob, data().size() - 100, 100);
    CHECK_THAT(Puller(cluster).pull(cluster), Contains("bytes instead of " + std::to_string(data().size())));
    CHECK_FALSE(fs::exists(Puller(cluster).store.blob_file(Digest::of(data()))));
    cluster.three_fs.lose(blob, 0, 0);
    CHECK(Puller(cluster).pull(cluster) == "the same");
  }
}

TEST_CASE("clients of another version, and none, are read through FUSE", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  for (const auto& [version, told] :
       {std::pair<std::uint32_t, std::string>{2, "interface has version 2"}, {0, "ask the client for its version"}}) {
    Cluster cluster;
    publish_x(cluster);
    cluster.three_fs.interface_version = version;
    CHECK(Puller(cluster).pull(cluster) == "the same");
    CHECK(cluster.three_fs.rings().bytes == 0);
    CHECK_THAT(cluster.warnings.text(), Contains(told));
  }
  // Where --allow-any-fs was asked for there is nothing to tell.
  Cluster cluster;
  cluster.address = RegistryAddress::parse("3fs://" + (cluster.directory.path() / "layers").native());
  cluster.address.allow_any_fs = true;
  publish_x(cluster);
  CHECK(Puller(cluster).pull(cluster) == "the same");
  CHECK(cluster.warnings.text() == "");
}

TEST_CASE("rings made by one thread do not take each other away", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Reading reading;
  struct stat status;
  REQUIRE(::fstat(reading.file.get(), &status) == 0);
  const fs::path registration = reading.directory.path() / usrbio::kRegister;
  auto first = std::make_unique<UsrbioRing>(registration, milliseconds(300));
  UsrbioRing second(registration, milliseconds(300));
  CHECK(reading.three_fs.rings().registered() == 4);
  first.reset();
  CHECK(reading.three_fs.rings().registered() == 2);
  std::string got;
  second.read(status.st_ino, 0, 1000, [&](std::span<const std::byte> piece) { got += text_of(piece); });
  CHECK(got == data().substr(0, 1000));
}

TEST_CASE("where there is no room for more rings, one does", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Reading reading;
  reading.three_fs.rings().most_registered = 3;
  std::vector<std::thread> threads;
  std::array<std::string, 8> got;
  for (std::string& text : got) threads.emplace_back([&] { text = reading.rings(0, 3 * UsrbioRing::kPiece); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : got) CHECK(text == data().substr(0, 3 * UsrbioRing::kPiece));
  CHECK(reading.notes == "");
}

TEST_CASE("what takes the bytes may fail, and the next reads go on", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Reading reading;
  CHECK_THROWS_AS(reading.reader.read(reading.file.get(), 0, data().size(),
                                      [](std::span<const std::byte>) { throw failure("the disk is full"); }),
                  Error);
  CHECK(reading.rings() == data());
  CHECK(reading.notes == "");
}

TEST_CASE("a reader that is killed leaves neither registrations nor shared memory", "[sandbox][3fs][usrbio]") {
  if (!has_fuse()) SKIP_BECAUSE(kNoFuse);
  Reading reading;
  const pid_t child = ::fork();
  if (child == 0) {
    const UsrbioRing ring(reading.directory.path() / usrbio::kRegister, milliseconds(300));
    ::raise(SIGKILL);
  }
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(shared_files() == 0);
  for (int i = 0; i < 100 && reading.three_fs.rings().registered() > 0; ++i)
    std::this_thread::sleep_for(milliseconds(20));
  CHECK(reading.three_fs.rings().registered() == 0);
}
