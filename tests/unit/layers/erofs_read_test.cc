#include <fcntl.h>

#include <catch2/catch.hpp>
#include <random>

#include "layers/erofs_read/erofs_image.h"
#include "tests/support/test_images.h"

using namespace dsec;
using namespace dsec::testing;
using namespace dsec::layers;
namespace fs = std::filesystem;

namespace {

struct Images {
  TempDirectory directory{fs::temp_directory_path()};

  ErofsImage make(const std::vector<TestEntry>& tree, const std::string& compression = "") {
    make_image(directory.path(), "image", tree, compression);
    return open(compression.empty());
  }
  ErofsImage open(bool with_data = true) {
    return ErofsImage(open_file(meta(), O_RDONLY),
                      with_data ? open_file(directory.path() / "image.data", O_RDONLY) : UniqueFd(), "'image'");
  }
  fs::path meta() const { return directory.path() / "image.meta"; }
};

std::string content(ErofsImage& image, const std::string& path) {
  const auto inode = image.find(path);
  REQUIRE(inode);
  std::string bytes(inode->size, '\0');
  REQUIRE(image.read(*inode, 0, bytes.data(), bytes.size()) == bytes.size());
  return bytes;
}

std::vector<std::string> paths(ErofsImage& image) {
  std::vector<std::string> found;
  walk(image, [&](const std::string& path, const ErofsInode&) { found.push_back(path); });
  return found;
}

}  // namespace

TEST_CASE("an image shows the attributes that its tar had", "[layers][erofs]") {
  Images images;
  ErofsImage image =
      images.make({dir("etc", 01777),
                   {.path = "etc/name", .content = "x", .mode = 04751, .uid = 70000, .gid = 5, .mtime = 7},
                   link_to("etc/link", "../somewhere"),
                   {.path = "etc/null", .type = '3', .mode = 0666, .major = 1, .minor = 300},
                   {.path = "etc/pipe", .type = '6', .mode = 0600},
                   whiteout("etc/gone"),
                   {.path = "etc/again", .type = '1', .content = "etc/name"}});
  const auto name = image.find("etc/name");
  REQUIRE(name);
  CHECK(name->is_file());
  CHECK((name->mode & 07777) == 04751);
  CHECK(name->uid == 70000);
  CHECK(name->mtime == Timestamp{7, 0});
  CHECK(name->gid == 5);
  CHECK(name->nlink == 2);
  CHECK(image.find("etc/again")->nid == name->nid);
  CHECK((image.find("etc")->mode & 07777) == 01777);
  CHECK(image.link_target(*image.find("etc/link")) == "../somewhere");
  CHECK(to_entry(image, "etc/null", *image.find("etc/null")).type == EntryType::CharDevice);
  CHECK(image.find("etc/null")->major == 1);
  CHECK(image.find("etc/null")->minor == 300);
  CHECK_FALSE(image.find("etc/null")->is_whiteout());
  CHECK(image.find("etc/gone")->is_whiteout());
  CHECK(to_entry(image, "etc/pipe", *image.find("etc/pipe")).type == EntryType::Fifo);
  CHECK_FALSE(image.find("etc/nothing"));
  CHECK_FALSE(image.find("etc/name/below"));
}

TEST_CASE("contents of every size are read as they were written", "[layers][erofs]") {
  Images images;
  std::vector<TestEntry> tree;
  std::mt19937 random(7);
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 8192, 262143, 262144, 262145, 1000000}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    tree.push_back(file("f" + std::to_string(size), bytes));
  }
  ErofsImage image = images.make(tree);
  for (const TestEntry& entry : tree) CHECK(content(image, entry.path) == entry.content);
  char part[10];
  REQUIRE(image.read(*image.find("f262145"), 262140, part, sizeof part) == 5);
  CHECK(std::string(part, 5) == tree[8].content.substr(262140));
  CHECK(image.read(*image.find("f1"), 1, part, sizeof part) == 0);
}

TEST_CASE("holes of a file are told apart", "[layers][erofs]") {
  Images images;
  ErofsImage image = images.make({file("sparse", std::string(262144 * 2, '\0') + std::string(262144, 'x'))});
  std::vector<std::pair<std::uint64_t, bool>> found;
  image.extents(*image.find("sparse"),
                [&](const ErofsExtent& extent) { found.emplace_back(extent.length, extent.hole); });
  CHECK(found.back() == std::pair<std::uint64_t, bool>(262144, false));
  std::uint64_t total = 0;
  for (const auto& [length, hole] : found) total += length;
  CHECK(total == 3 * 262144);
}

TEST_CASE("directories of many blocks are listed and searched", "[layers][erofs]") {
  Images images;
  std::vector<TestEntry> tree = {dir("d")};
  for (int i = 0; i < 2000; ++i) tree.push_back(file("d/file-with-a-long-name-" + std::to_string(i)));
  tree.push_back(file("d/" + std::string(255, 'z'), "z"));
  ErofsImage image = images.make(tree);
  CHECK(image.list(*image.find("d")).size() == 2001);
  for (std::size_t i = 1; i < tree.size(); ++i) CHECK(image.find(tree[i].path));
  CHECK_FALSE(image.find("d/file"));
  CHECK_FALSE(image.find("d/zzz"));
  CHECK_FALSE(image.find("d/a"));
  CHECK(paths(image).size() == 2003);
}

TEST_CASE("xattrs come back whole, shared between inodes or not", "[layers][erofs]") {
  Images images;
  const std::string capability("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 20);
  std::vector<TestEntry> tree = {opaque_dir("opaque")};
  for (int i = 0; i < 5; ++i)
    tree.push_back({.path = "f" + std::to_string(i),
                    .mode = 0755,
                    .xattrs = {{"security.capability", capability},
                               {"user.n", std::to_string(i)},
                               {"user.big", std::string(3000, 'b')}}});
  ErofsImage image = images.make(tree);
  CHECK(image.xattrs(*image.find("opaque")) == std::map<std::string, std::string>{{"trusted.overlay.opaque", "y"}});
  for (std::size_t i = 1; i < tree.size(); ++i) CHECK(image.xattrs(*image.find(tree[i].path)) == tree[i].xattrs);
}

TEST_CASE("a compressed image is listed, and its contents refused", "[layers][erofs]") {
  Images images;
  ErofsImage image = images.make({dir("d"), file("d/text", std::string(200000, 'a')), link_to("l", "d")}, "lz4");
  CHECK(paths(image) == std::vector<std::string>{"", "d", "d/text", "l"});
  const auto text = image.find("d/text");
  REQUIRE(text->compressed());
  char byte;
  REQUIRE_THROWS_WITH(image.read(*text, 0, &byte, 1), Catch::Contains("compressed"));
}

TEST_CASE("names that are no UTF-8 are kept as bytes", "[layers][erofs]") {
  Images images;
  ErofsImage image = images.make({file("\xff\xfe-name", "1"), file("new\nline", "2")});
  CHECK(content(image, "\xff\xfe-name") == "1");
  CHECK(content(image, "new\nline") == "2");
}

TEST_CASE("what is no EROFS image is refused by name", "[layers][erofs]") {
  Images images;
  write_file_atomic(images.meta(), std::string(8192, 'x'));
  REQUIRE_THROWS_WITH(images.open(false), Catch::Contains("image 'image' is no EROFS image"));
  write_file_atomic(images.meta(), "short");
  REQUIRE_THROWS_WITH(images.open(false), Catch::Contains("too short"));
}

TEST_CASE("a changed superblock is noticed by its checksum", "[layers][erofs]") {
  Images images;
  (void)images.make({file("a")});
  std::string bytes = read_file(images.meta());
  bytes[1024 + 50] ^= 1;
  write_file_atomic(images.meta(), bytes);
  REQUIRE_THROWS_WITH(images.open(), Catch::Contains("checksum"));
}

TEST_CASE("a directory that contains itself is refused instead of walked for ever", "[layers][erofs]") {
  Images images;
  std::uint64_t inner = 0, outer = 0;
  {
    ErofsImage image = images.make({dir("outer"), dir("outer/inner"), file("outer/inner/f")});
    inner = image.find("outer/inner")->nid;
    outer = image.find("outer")->nid;
  }
  std::string bytes = read_file(images.meta());
  const auto as_bytes = [](std::uint64_t number) {
    std::string raw(8, '\0');
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<char>(number >> 8 * i);
    return raw;
  };
  // The entry lies in the directory block that holds its name.
  const std::size_t block = bytes.find("inner") / 4096 * 4096, entry = bytes.find(as_bytes(inner), block);
  REQUIRE(entry < block + 4096);
  bytes.replace(entry, 8, as_bytes(outer));
  bytes[1024 + 8] &= ~1;  // no checksum
  write_file_atomic(images.meta(), bytes);
  ErofsImage image = images.open();
  REQUIRE_THROWS_WITH(paths(image), Catch::Contains("in itself"));
}

TEST_CASE("no byte of an image can be changed so that reading it crashes or hangs", "[layers][erofs]") {
  Images images;
  (void)images.make({dir("d"),
                     file("d/a", std::string(5000, 'a')),
                     link_to("l", "d/a"),
                     opaque_dir("o"),
                     {.path = "x", .mode = 0644, .xattrs = {{"user.a", "1"}, {"user.b", std::string(100, 'b')}}}});
  const std::string good = read_file(images.meta());
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    // No checksum, so that the damage is met and not the checksum.
    bytes[1024 + 8] &= ~1;
    for (int i = 0; i < 1 + round % 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    write_all(open_file(images.meta(), O_WRONLY | O_TRUNC).get(), bytes);
    try {
      ErofsImage image = images.open();
      walk(image, [&](const std::string& path, const ErofsInode& inode) {
        (void)to_entry(image, path, inode);
        if (inode.is_file() && !inode.compressed()) image.extents(inode, [](const ErofsExtent&) {});
      });
    } catch (const Error&) {
    }
  }
}
