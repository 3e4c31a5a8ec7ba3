#include "runners/container/written_tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/extended_attributes.h"
#include "tests/support/skip.h"

namespace dsec::runners {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kPlenty = 1ull << 30;

UniqueFd folder(const fs::path& path) { return open_file(path, O_RDONLY | O_DIRECTORY); }
void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
void whiteout(const fs::path& path) { REQUIRE(::mknod(path.c_str(), S_IFCHR, 0) == 0); }
void opaque(const fs::path& path) { REQUIRE(::setxattr(path.c_str(), kOpaqueAttribute, "y", 1, 0) == 0); }
bool is_whiteout(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISCHR(info.st_mode) && info.st_rdev == 0;
}
bool is_opaque(const fs::path& path) {
  char value = 0;
  return ::getxattr(path.c_str(), kOpaqueAttribute, &value, 1) == 1 && value == 'y';
}

// Two trees as a guest has them, and where they arrive.
struct Trees {
  Trees() : place(fs::temp_directory_path()) {
    for (const char* name : {"upper", "lower", "into"}) fs::create_directory(place.path() / name);
  }
  fs::path operator[](const char* path) const { return place.path() / path; }
  void send(Below below = Below::Included, std::uint64_t most = kPlenty) const {
    const UniqueFd tar(::memfd_create("tar", MFD_CLOEXEC));
    write_written(folder((*this)["upper"]).get(), folder((*this)["lower"]).get(), below, tar.get());
    ::lseek(tar.get(), 0, SEEK_SET);
    unpack_written(folder((*this)["into"]).get(), tar.get(), most);
  }
  TempDirectory place;
};

struct Entry {
  const char* path;
  mode_t type = AE_IFREG;
  std::uint64_t size = 0;
  const char* link = nullptr;
  dev_t device = 0;
};

void unpack(const Trees& trees, std::initializer_list<Entry> entries, std::uint64_t most = kPlenty,
            bool packed = false) {
  const UniqueFd tar(::memfd_create("tar", MFD_CLOEXEC));
  archive* writer = archive_write_new();
  archive_write_set_format_pax(writer);
  if (packed) archive_write_add_filter_gzip(writer);
  archive_write_open_fd(writer, tar.get());
  const std::string zeros(1 << 20, '\0');
  for (const Entry& each : entries) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, each.path);
    archive_entry_set_filetype(entry, each.type);
    archive_entry_set_perm(entry, 0644);
    if (each.type == AE_IFLNK) archive_entry_set_symlink(entry, each.link);
    archive_entry_set_rdevmajor(entry, major(each.device));
    archive_entry_set_rdevminor(entry, minor(each.device));
    archive_entry_set_size(entry, static_cast<la_int64_t>(each.size));
    archive_write_header(writer, entry);
    for (std::uint64_t done = 0; done < each.size; done += zeros.size())
      archive_write_data(writer, zeros.data(), std::min<std::uint64_t>(zeros.size(), each.size - done));
    archive_entry_free(entry);
  }
  archive_write_free(writer);
  ::lseek(tar.get(), 0, SEEK_SET);
  unpack_written(folder(trees["into"]).get(), tar.get(), most);
}

// All that its error says; empty when there is none.
std::string reason(const Trees& trees, std::initializer_list<Entry> entries, std::uint64_t most = kPlenty,
                   bool packed = false) {
  try {
    unpack(trees, entries, most, packed);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("deletions and opaque directories arrive where they hide something", "[runners][written]") {
  if (::geteuid() != 0) SKIP_BECAUSE("marks of overlayfs need root");
  const Trees trees;
  write(trees["lower/gone"], "g");
  fs::create_directories(trees["lower/renewed/below"]);
  write(trees["lower/renewed/old"], "o");
  whiteout(trees["upper/gone"]);
  whiteout(trees["upper/passed"]);
  for (const char* name : {"upper/renewed", "upper/new", "upper/new/deep"}) {
    fs::create_directory(trees[name]);
    opaque(trees[name]);
  }
  write(trees["upper/renewed/new"], "n");
  whiteout(trees["upper/renewed/old"]);
  trees.send(Below::Left);
  CHECK(is_whiteout(trees["into/upper/gone"]));
  CHECK_FALSE(fs::exists(fs::symlink_status(trees["into/upper/passed"])));
  CHECK(is_opaque(trees["into/upper/renewed"]));
  CHECK(read_file(trees["into/upper/renewed/new"]) == "n");
  CHECK_FALSE(fs::exists(fs::symlink_status(trees["into/upper/renewed/old"])));
  CHECK_FALSE(is_opaque(trees["into/upper/new"]));
  CHECK_FALSE(is_opaque(trees["into/upper/new/deep"]));
  CHECK_FALSE(fs::exists(trees["into/lower"]));
}

TEST_CASE("what lies below comes where something has changed, and nothing else of it", "[runners][written]") {
  if (::geteuid() != 0) SKIP_BECAUSE("marks of overlayfs need root");
  const Trees trees;
  fs::create_directories(trees["lower/kept"]);
  write(trees["lower/kept/file"], "k");
  fs::create_directories(trees["lower/whole/deep"]);
  write(trees["lower/whole/deep/file"], "w");
  fs::create_directory(trees["lower/renewed"]);
  write(trees["lower/renewed/old"], "o");
  write(trees["lower/changed"], "before");
  write(trees["lower/script"], "s");
  write(trees["upper/changed"], "after");
  whiteout(trees["upper/whole"]);
  fs::create_directory(trees["upper/renewed"]);
  opaque(trees["upper/renewed"]);
  fs::create_directory(trees["upper/script"]);
  write(trees["upper/fresh"], "f");
  trees.send();
  CHECK(read_file(trees["into/upper/changed"]) == "after");
  CHECK(read_file(trees["into/lower/changed"]) == "before");
  CHECK(read_file(trees["into/lower/whole/deep/file"]) == "w");
  CHECK(read_file(trees["into/lower/renewed/old"]) == "o");
  CHECK(read_file(trees["into/lower/script"]) == "s");
  CHECK_FALSE(fs::exists(trees["into/lower/kept"]));
  CHECK_FALSE(fs::exists(trees["into/lower/fresh"]));
}

TEST_CASE("a guest can send no more than its disk holds", "[runners][written]") {
  if (::geteuid() != 0) SKIP_BECAUSE("marks of overlayfs need root");
  const Trees trees;
  constexpr char kTooMuch[] = "the guest sends more than its disk has room for";
  CHECK_THAT(reason(trees, {{.path = "upper/big", .size = 40 << 20}}, 32 << 20), Catch::Contains(kTooMuch));
  CHECK(fs::file_size(trees["into/upper/big"]) <= 32 << 20);
  // Packed, it is a few KiB on its way.
  CHECK_THAT(reason(trees, {{.path = "upper/bomb", .size = 40 << 20}}, 32 << 20, true), Catch::Contains(kTooMuch));
  CHECK_THAT(
      reason(trees, {{.path = "a", .type = AE_IFDIR}, {.path = "b", .type = AE_IFDIR}, {.path = "c", .type = AE_IFDIR}},
             1024),
      Catch::Contains(kTooMuch));
}

TEST_CASE("a guest makes nothing on the host but files and deletions, and nothing elsewhere", "[runners][written]") {
  if (::geteuid() != 0) SKIP_BECAUSE("marks of overlayfs need root");
  const Trees trees;
  write(trees["secret"], "kept");
  CHECK_THAT(reason(trees, {{.path = "upper/disk", .type = AE_IFBLK, .device = makedev(8, 0)}}),
             Catch::Contains("it is a device"));
  CHECK_THAT(reason(trees, {{.path = "upper/null", .type = AE_IFCHR, .device = makedev(1, 3)}}),
             Catch::Contains("it is a device"));
  CHECK_THAT(reason(trees, {{.path = "upper/../../secret", .size = 3}}), Catch::Contains("leads out"));
  CHECK_THAT(reason(trees, {{.path = "/secret", .size = 3}}), Catch::Contains("absolute"));
  CHECK_THAT(reason(trees, {{.path = "upper/link", .type = AE_IFLNK, .link = "/../.."},
                            {.path = "upper/link/secret", .size = 3}}),
             Catch::Contains("through the symlink"));
  CHECK(read_file(trees["secret"]) == "kept");
}

TEST_CASE("a stream that is cut off is told", "[runners][written]") {
  const Trees trees;
  const UniqueFd tar(::memfd_create("tar", MFD_CLOEXEC));
  write_all(tar.get(), std::string(700, 'x'));
  ::lseek(tar.get(), 0, SEEK_SET);
  CHECK_THROWS_WITH(unpack_written(folder(trees["into"]).get(), tar.get(), kPlenty),
                    Catch::Contains("cannot take in what the guest has written"));
}

}  // namespace dsec::runners
