#include "layers/disk/disk_stack.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <set>
#include <sstream>

#include "core/base/child_process.h"
#include "core/engine/machine_disks.h"
#include "layers/disk/machine_disks.h"
#include "tests/unit/layers/overlaybd/layers.h"

using namespace dsec;
using namespace dsec::layers;
using namespace dsec::testing;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kSize = 4 << 20, kSectors = kSize / obd::kSector;

class Disks {
 public:
  fs::path path(const std::string& name) const { return directory_.path() / name; }
  fs::path make(const std::string& name, const std::vector<fs::path>& layers = {}, std::uint64_t size = kSize) {
    disks_->create(path(name), {.below = {}, .layers = layers, .size = size});
    return path(name);
  }
  engine::MachineDisks& port() { return *disks_; }

 private:
  TempDirectory directory_{fs::temp_directory_path()};
  std::unique_ptr<engine::MachineDisks> disks_ = make_machine_disks();
};

std::string shown(DiskStack& disk) {
  std::string bytes(disk.size(), '?');
  disk.read(0, bytes.data(), bytes.size());
  return bytes;
}
std::string shown(const fs::path& disk) {
  DiskStack stack(disk, {});
  return shown(stack);
}

/// A disk and what it must show.
class Writer {
 public:
  Writer(DiskStack& disk, unsigned seed) : disk_(disk), expected(shown(disk)), random_(seed) {}

  void change() {
    const std::uint64_t sector = random_() % kSectors;
    const std::uint64_t length = 1 + random_() % std::min<std::uint64_t>(kSectors - sector, random_() % 8 ? 20 : 900);
    const std::size_t at = sector * obd::kSector, size = length * obd::kSector;
    if (random_() % 3 == 0) {
      disk_.clear(at, size);
      expected.replace(at, size, std::string(size, '\0'));
    } else {
      const std::string bytes = noise(random_, size);
      disk_.write(at, bytes);
      expected.replace(at, size, bytes);
    }
  }
  unsigned random() { return static_cast<unsigned>(random_()); }

 private:
  DiskStack& disk_;

 public:
  std::string expected;

 private:
  std::mt19937 random_;
};

std::uint64_t allocated(const fs::path& file) {
  struct stat status = {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

void compact_all(DiskStack& disk) {
  while (const auto compaction = disk.next_compaction()) {
    compaction->run();
    disk.accept(*compaction);
    disk.forget_replaced();
  }
}

std::set<std::string> files_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("a disk shows what was written last, through seals, compactions and new openings", "[layers][disk]") {
  for (unsigned seed = 0; seed < 4; ++seed) {
    Disks disks;
    const fs::path place = disks.make("disk");
    std::optional<DiskStack> disk(std::in_place, place, std::vector<UniqueFd>());
    std::optional<Writer> writer(std::in_place, *disk, seed);
    for (int i = 0; i < 300; ++i) {
      writer->change();
      const unsigned what = writer->random() % 40;
      if (what < 4) disk->seal();
      if (what == 5) disk->flush();
      if (what == 6) compact_all(*disk);
      if (what != 7) continue;
      const std::string expected = writer->expected;
      writer.reset();
      disk.reset();
      disk.emplace(place, std::vector<UniqueFd>());
      REQUIRE(shown(*disk) == expected);
      writer.emplace(*disk, seed + static_cast<unsigned>(i));
    }
    REQUIRE(shown(*disk) == writer->expected);
  }
}

TEST_CASE("what is written again or cleared makes the files of a disk no larger", "[layers][disk]") {
  Disks disks;
  DiskStack disk(disks.make("disk"), {});
  const fs::path data = layer_file(disks.path("disk"), 1), index = index_file(disks.path("disk"), 1);
  disk.write(0, sectors(kSectors, 'a'));
  const auto full = fs::file_size(data), indexed = fs::file_size(index);
  CHECK(full == 4096 + kSize);
  for (int i = 0; i < 50; ++i) {
    disk.write(4096 * static_cast<std::uint64_t>(i), sectors(8, 'b'));
    disk.clear(0, kSize);
    disk.write(0, sectors(kSectors, 'c'));
  }
  CHECK(fs::file_size(data) == full);
  CHECK(fs::file_size(index) == indexed);
  disk.clear(0, kSize);
  disk.flush();
  CHECK(allocated(data) < 64 << 10);
  CHECK(shown(disk) == std::string(kSize, '\0'));
}

TEST_CASE("whoever writes everything again in pieces gets no more than three times the disk", "[layers][disk]") {
  constexpr std::uint64_t kPieces = DiskStack::kMostRuns + 1000, kBytes = 2 * kPieces * obd::kSector;
  Disks disks;
  DiskStack disk(disks.make("disk", {}, kBytes), {});
  const auto write_all_pieces = [&](char what) {
    const std::string sector(obd::kSector, what);
    for (std::uint64_t i = 0; i < kPieces; ++i) disk.write(2 * i * obd::kSector, sector);
  };
  write_all_pieces('a');
  CHECK(disk.facts().layers.size() == 1);
  for (const char what : {'b', 'c', 'd', 'e', 'f', 'g', 'h'}) write_all_pieces(what);
  // No compaction comes in between, or each fails since one layer cannot have as many pieces as they have together.
  std::uint64_t data = allocated(layer_file(disks.path("disk"), disk.facts().top));
  for (const std::uint64_t number : disk.facts().layers) data += allocated(layer_file(disks.path("disk"), number));
  CHECK(data < 3 * kBytes);
  std::string last(2 * obd::kSector, '?');
  disk.read(kBytes - last.size(), last.data(), last.size());
  CHECK(last == std::string(obd::kSector, 'h') + std::string(obd::kSector, '\0'));
}

TEST_CASE("what is cleared that a lower layer has is hidden, and what nobody has costs nothing", "[layers][disk]") {
  Disks disks;
  DiskStack disk(disks.make("disk"), {});
  disk.clear(0, kSize);
  CHECK(fs::file_size(index_file(disks.path("disk"), 1)) == 4096);
  disk.write(8192, sectors(16, 'a'));
  disk.seal();
  disk.clear(0, 12288);
  CHECK(shown(disk).substr(0, 20480) == std::string(12288, '\0') + sectors(8, 'a') + std::string(4096, '\0'));
  CHECK(fs::file_size(index_file(disks.path("disk"), 2)) == 4096 + obd::Mapping::kSize);
}

TEST_CASE("a sealed disk is an immutable stack that others stand on", "[layers][disk]") {
  Disks disks;
  DiskStack disk(disks.make("one"), {});
  Writer writer(disk, 1);
  for (int i = 0; i < 50; ++i) writer.change();
  disk.seal();
  const std::string then = writer.expected;
  const std::vector<fs::path> layers = disks.port().layers(disks.path("one"));
  std::vector<std::unique_ptr<DiskStack>> clones;
  for (int i = 0; i < 3; ++i) {
    const fs::path place = disks.make("clone" + std::to_string(i), layers, 0);
    CHECK(fs::equivalent(disks.port().layers(place)[0], layers[0]));
    clones.push_back(std::make_unique<DiskStack>(place, std::vector<UniqueFd>()));
  }
  for (int i = 0; i < 50; ++i) writer.change();
  Writer other(*clones[0], 2);
  CHECK(other.expected == then);
  for (int i = 0; i < 50; ++i) other.change();
  CHECK(shown(disk) == writer.expected);
  CHECK(shown(*clones[0]) == other.expected);
  CHECK(shown(*clones[1]) == then);
  // Whoever had the layers may go.
  remove_tree(disks.path("one"));
  clones[2].reset();
  CHECK(shown(disks.path("clone2")) == then);
}

TEST_CASE("a seal takes the time of its mappings, not of its data", "[layers][disk]") {
  Disks disks;
  DiskStack disk(disks.make("disk", {}, 1 << 30), {});
  const auto seconds_of_seal = [&] {
    const auto began = std::chrono::steady_clock::now();
    disk.seal();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  disk.write(0, sectors(8, 'a'));
  const double small = seconds_of_seal();
  for (std::uint64_t at = 0; at < 128 << 20; at += 1 << 20) disk.write(at, sectors(2048, 'b'));
  const double large = seconds_of_seal();
  // Their trailers and tables; nothing of 128 MiB is read or written again.
  CHECK(fs::file_size(layer_file(disks.path("disk"), 2)) < (128 << 20) + (64 << 10));
  CHECK(large < small * 20 + 0.25);
}

TEST_CASE("the layers of a disk become fewer, those that others have only in need", "[layers][disk]") {
  Disks disks;
  const fs::path place = disks.make("disk");
  DiskStack disk(place, {});
  Writer writer(disk, 3);
  for (int i = 0; i < 100; ++i) {
    writer.change();
    disk.seal();
    compact_all(disk);
    REQUIRE(disk.facts().layers.size() < 2 * DiskStack::kManyLayers);
  }
  CHECK(shown(disk) == writer.expected);
  disk.flush();
  CHECK(files_in(place).size() == disk.facts().layers.size() + 3);

  const fs::path shared = disks.make("shared");
  DiskStack kept(shared, {});
  Writer keeper(kept, 4);
  std::size_t most = 0;
  for (std::size_t i = 0; i < 160; ++i) {
    keeper.change();
    kept.seal();
    fs::create_hard_link(layer_file(shared, kept.facts().layers.back()), disks.path("kept" + std::to_string(i)));
    compact_all(kept);
    most = std::max(most, kept.facts().layers.size());
  }
  CHECK(most >= DiskStack::kTooManyLayers - 1);
  CHECK(most < 140);
  CHECK(shown(kept) == keeper.expected);
}

TEST_CASE("a seal during a compaction counts", "[layers][disk]") {
  Disks disks;
  DiskStack disk(disks.make("disk"), {});
  Writer writer(disk, 5);
  for (std::size_t i = 0; i < DiskStack::kManyLayers; ++i) {
    writer.change();
    disk.seal();
  }
  const auto compaction = disk.next_compaction();
  REQUIRE(compaction);
  writer.change();
  disk.seal();
  compaction->run();
  writer.change();
  disk.seal();
  disk.accept(*compaction);
  CHECK(shown(disk) == writer.expected);
  disk.forget_replaced();
  CHECK(shown(disk) == writer.expected);
}

TEST_CASE("cleared sectors take no room once layers were made one", "[layers][disk]") {
  Disks disks;
  const fs::path place = disks.make("disk");
  DiskStack disk(place, {});
  for (std::size_t i = 0; i < DiskStack::kManyLayers; ++i) {
    disk.write(0, sectors(kSectors / 2, 'a'));
    disk.clear(0, kSize);
    disk.seal();
  }
  compact_all(disk);
  std::uint64_t all = 0;
  for (const fs::path& layer : disks.port().layers(place)) all += fs::file_size(layer);
  CHECK(all < 256 << 10);
  CHECK(shown(disk) == std::string(kSize, '\0'));
}

TEST_CASE("a disk has one user at a time", "[layers][disk]") {
  Disks disks;
  const fs::path place = disks.make("disk");
  DiskStack disk(place, {});
  CHECK_THROWS_WITH(DiskStack(place, {}), Catch::Contains("being written to by another process"));
}

TEST_CASE("layers that lie elsewhere are given by descriptor, and have to be the same", "[layers][disk]") {
  Disks disks;
  Layers layers;
  layers.writable("low", kSize, "3F2C9D1E-0000-4000-8000-000000000001");
  layers.open("low").write(0, sectors(8, 'l'));
  layers.commit({"low.data", "low.index"}, "low");
  obd::NewLayer other;
  other.uuid = "3F2C9D1E-0000-4000-8000-000000000002";
  layers.commit({"low.data", "low.index"}, "other", other);
  const UniqueFd low = open_file(layers.path("low"), O_RDONLY);
  disks.port().create(disks.path("disk"), {.below = {low.get()}, .layers = {}, .size = 2 * kSize});
  const auto open = [&](const std::vector<std::string>& names) {
    std::vector<UniqueFd> below;
    for (const auto& name : names) below.push_back(open_file(layers.path(name), O_RDONLY));
    return DiskStack(disks.path("disk"), std::move(below));
  };
  DiskStack disk = open({"low"});
  CHECK(disk.size() == 2 * kSize);
  disk.write(512, sectors(1, 'x'));
  CHECK(shown(disk).substr(0, 2048) == sectors(1, 'l') + sectors(1, 'x') + sectors(2, 'l'));
  CHECK_THROWS_WITH(open({}), Catch::Contains("1 layers that lie elsewhere, and 0 are given"));
  CHECK_THROWS_WITH(open({"other"}), Catch::Contains("being written to"));
}

// What the host's page cache has survives the death of a process: after it, the disk shows all that was answered.
TEST_CASE("whoever serves a disk may be killed at any point", "[layers][disk]") {
  for (unsigned seed = 0; seed < 24; ++seed) {
    Disks disks;
    const fs::path place = disks.make("disk");
    const UniqueFd log = open_file(disks.path("log"), O_RDWR | O_CREAT | O_APPEND);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // Each change is known before it begins and after it has ended.
      std::mt19937 random(seed);
      try {
        DiskStack disk(place, {});
        for (unsigned i = 1;; ++i) {
          const std::uint64_t at = random() % (kSectors - 8) * obd::kSector;
          const char fill = static_cast<char>('a' + i % 26);
          const std::string line = std::to_string(at) + " " + fill + "\n";
          write_all(log.get(), "begin " + line);
          disk.write(at, sectors(8, fill));
          write_all(log.get(), "end " + line);
          if (random() % 4 == 0) disk.seal();
          if (random() % 8 == 0) disk.flush();
          compact_all(disk);
        }
      } catch (const std::exception&) {
      }
      ::_exit(1);
    }
    ::usleep(2000 + seed * 3700 % 60'000);
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));

    std::string expected(kSize, '\0');
    std::istringstream lines(read_file(disks.path("log")));
    std::uint64_t at = 0;
    std::size_t unsure = std::string::npos;
    for (std::string word, fill; lines >> word >> at >> fill;) {
      unsure = word == "begin" ? at : std::string::npos;
      if (word == "end") expected.replace(at, 8 * obd::kSector, sectors(8, fill[0]));
    }
    std::string found = shown(place);
    if (unsure != std::string::npos) {
      expected.replace(unsure, 8 * obd::kSector, sectors(8, '?'));
      found.replace(unsure, 8 * obd::kSector, sectors(8, '?'));
    }
    REQUIRE(found == expected);
    // Nothing is left of what it had begun.
    DiskStack again(place, {});
    again.flush();
    CHECK(files_in(place).size() == again.facts().layers.size() + 3);
  }
}

TEST_CASE("a seal that the host did not get to its disk is made again", "[layers][disk]") {
  Disks disks;
  const fs::path place = disks.make("disk");
  {
    DiskStack disk(place, {});
    disk.write(0, sectors(8, 'a'));
    disk.flush();
    disk.seal();
    disk.write(4096, sectors(8, 'b'));
  }
  // A power cut before the next flush: the names are there, the end of the sealed layer is not.
  fs::resize_file(layer_file(place, 1), 4096 + 8 * obd::kSector);
  CHECK(shown(place).substr(0, 8192) == sectors(8, 'a') + sectors(8, 'b'));
  CHECK(shown(place).substr(0, 8192) == sectors(8, 'a') + sectors(8, 'b'));
}

TEST_CASE("what was begun and not named is removed, and a seal that came not so far never was", "[layers][disk]") {
  Disks disks;
  const fs::path place = disks.make("disk");
  {
    DiskStack disk(place, {});
    disk.write(0, sectors(8, 'a'));
  }
  {
    // As DiskStack::seal() does, up to the file that names layers.
    obd::WritableLayer top(layer_file(place, 1), index_file(place, 1), obd::WritableLayer::Access::Write);
    make_top(place, 2, kSize, "");
    top.seal();
  }
  {
    DiskStack disk(place, {});
    CHECK(files_in(place) == std::set<std::string>{"1.obd", "1.index", "stack.json"});
    CHECK(shown(disk).substr(0, 4096) == sectors(8, 'a'));
    disk.write(4096, sectors(8, 'b'));
    disk.seal();
    CHECK(shown(disk).substr(0, 8192) == sectors(8, 'a') + sectors(8, 'b'));
  }
  CHECK(shown(place).substr(0, 8192) == sectors(8, 'a') + sectors(8, 'b'));
}

TEST_CASE("a disk that is damaged is refused, saying what is wrong", "[layers][disk]") {
  Disks disks;
  const fs::path place = disks.make("disk");
  CHECK_THROWS_WITH(disks.make("disk"), Catch::Contains("exists"));
  CHECK_THROWS_WITH(disks.make("none", {}, 0), Catch::Contains("has no whole number of sectors"));
  CHECK_THROWS_WITH(disks.make("none", {}, 100), Catch::Contains("has no whole number of sectors"));
  CHECK_FALSE(fs::exists(disks.path("none")));
  const auto with_stack = [&](const std::string& text) {
    write_file_atomic(place / "stack.json", text);
    return DiskStack(place, {});
  };
  CHECK_THROWS_WITH(with_stack("{}"), Catch::Contains("format"));
  CHECK_THROWS_WITH(with_stack(R"({"format":2})"), Catch::Contains("another version of dsec"));
  CHECK_THROWS_WITH(with_stack(R"({"format":1,"size":4194304,"top":1,"below":[],"layers":["x"]})"),
                    Catch::Contains("does not tell the layers"));
  CHECK_THROWS_WITH(with_stack(R"({"format":1,"size":4194304,"below":[],"layers":[]})"),
                    Catch::Contains("is a snapshot"));
  CHECK_THROWS(with_stack(R"({"format":1,"size":4194304,"top":7,"below":[],"layers":[]})"));
}
