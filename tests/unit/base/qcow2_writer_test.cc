#include "core/base/qcow2_writer.h"

#include <fcntl.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec {
namespace {

// As the format's own text has it, and written without a look at the writer.
class Image {
 public:
  explicit Image(std::string bytes) : bytes_(std::move(bytes)) {
    REQUIRE(bytes_.substr(0, 4) == "QFI\xfb");
    REQUIRE(number(4, 4) == 3);
    REQUIRE(number(8, 8) == 0);   // stands on nothing
    REQUIRE(number(72, 8) == 0);  // and needs nothing
    REQUIRE(number(100, 4) == 104);
  }
  std::uint64_t number(std::uint64_t at, std::size_t size) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | static_cast<unsigned char>(bytes_.at(at + i));
    return value;
  }
  std::uint64_t size() const { return number(24, 8); }
  std::uint64_t cluster() const { return std::uint64_t{1} << number(20, 4); }
  std::string read(std::uint64_t number_of_cluster) const {
    const std::uint64_t per_table = cluster() / 8;
    const std::uint64_t top = number(number(40, 8) + number_of_cluster / per_table * 8, 8) & 0x00fffffffffffe00;
    if (!top) return "";
    const std::uint64_t entry = number(top + number_of_cluster % per_table * 8, 8);
    CHECK(refcount(top / cluster()) == 1);
    if (!(entry & 0x00fffffffffffe00)) return "";
    CHECK(entry >> 63 == 1);
    CHECK(refcount((entry & 0x00fffffffffffe00) / cluster()) == 1);
    return bytes_.substr(entry & 0x00fffffffffffe00, cluster());
  }
  std::uint64_t refcount(std::uint64_t of_cluster) const {
    const std::uint64_t per_block = cluster() / 2;
    const std::uint64_t block = number(number(48, 8) + of_cluster / per_block * 8, 8);
    return block ? number(block + of_cluster % per_block * 2, 2) : 0;
  }
  std::uint64_t clusters() const { return bytes_.size() / cluster(); }

 private:
  std::string bytes_;
};

struct Fixture {
  TempDirectory scratch{std::filesystem::temp_directory_path()};
  std::filesystem::path file = scratch.path() / "image";
  UniqueFd fd = open_file(file, O_RDWR | O_CREAT);
  Image image() const { return Image(read_file(file)); }
};

std::string full(char c) { return std::string(kQcow2Cluster, c); }

TEST_CASE("an image that holds nothing has its size, and counts its own clusters", "[base][qcow2]") {
  for (const std::uint64_t size : {std::uint64_t{512}, std::uint64_t{4} << 30, std::uint64_t{5} << 40}) {
    Fixture made;
    Qcow2Writer(made.fd.get(), size).finish();
    const Image image = made.image();
    CHECK(image.size() == size);
    for (std::uint64_t i = 0; i < image.clusters(); ++i) REQUIRE(image.refcount(i) == 1);
    CHECK(image.refcount(image.clusters()) == 0);
    CHECK(image.read(0).empty());
    CHECK(image.read((size - 1) / kQcow2Cluster).empty());
  }
}

TEST_CASE("what was put into an image is found where it was put", "[base][qcow2]") {
  Fixture made;
  Qcow2Writer writer(made.fd.get(), 2ull << 30);
  writer.put(0, full('a'));
  writer.put(1, full('b'));
  writer.put(8191, full('c'));
  writer.put(8192, full('d'));  // the first of another table
  writer.put(32767, full('e'));
  writer.finish();
  const Image image = made.image();
  CHECK(image.read(0) == full('a'));
  CHECK(image.read(1) == full('b'));
  CHECK(image.read(2).empty());
  CHECK(image.read(8191) == full('c'));
  CHECK(image.read(8192) == full('d'));
  CHECK(image.read(20000).empty());
  CHECK(image.read(32767) == full('e'));
  for (std::uint64_t i = 0; i < image.clusters(); ++i) REQUIRE(image.refcount(i) == 1);
}

}  // namespace
}  // namespace dsec
