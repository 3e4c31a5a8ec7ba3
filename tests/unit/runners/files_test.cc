#include "runners/container/files.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"

using namespace dsec;
using namespace dsec::runners;
namespace fs = std::filesystem;

namespace {

UniqueFd memory_file() { return UniqueFd(::memfd_create("tar", MFD_CLOEXEC)); }

struct Entry {
  mode_t type = AE_IFREG;
  std::string content;  ///< of files; target of symlinks
  std::string link;     ///< hard link to
  mode_t mode = 0644;
  std::int64_t uid = 0, size = 0;
};

/// A tree that stands for a sandbox, with a secret beside it. Who runs the test is its only user.
struct Sandbox {
  Sandbox() : directory(fs::temp_directory_path()) {
    fs::create_directories(root() / "etc");
    fs::create_directories(root() / "area");
    write(root() / "etc/passwd", "inside");
    write(outside() / "passwd", "SECRET");
    fd = open_file(root(), O_PATH | O_DIRECTORY);
  }
  fs::path root() const { return directory.path() / "root"; }
  fs::path outside() const {
    fs::create_directories(directory.path() / "outside");
    return directory.path() / "outside";
  }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  SandboxFiles files() const { return {fd.get(), {.first = ::getuid(), .count = ::getuid() == 0 ? kIdCount : 1}}; }

  /// Entries of what copy_out writes, by name.
  std::map<std::string, Entry> out(const std::string& path) const {
    const UniqueFd tar = memory_file();
    copy_out(files(), path, tar.get());
    ::lseek(tar.get(), 0, SEEK_SET);
    archive* reader = archive_read_new();
    archive_read_support_format_tar(reader);
    REQUIRE(archive_read_open_fd(reader, tar.get(), 65536) == ARCHIVE_OK);
    std::map<std::string, Entry> found;
    archive_entry* entry = nullptr;
    int result = 0;
    while ((result = archive_read_next_header(reader, &entry)) == ARCHIVE_OK) {
      Entry& each = found[archive_entry_pathname(entry)];
      each = {.type = archive_entry_filetype(entry),
              .mode = archive_entry_perm(entry),
              .uid = archive_entry_uid(entry),
              .size = archive_entry_size(entry)};
      if (each.type == AE_IFLNK) each.content = archive_entry_symlink(entry);
      if (archive_entry_hardlink(entry) != nullptr) each.link = archive_entry_hardlink(entry);
      if (each.type == AE_IFREG && each.link.empty() && each.size < 10'000'000) {
        each.content.resize(static_cast<std::size_t>(each.size));
        archive_read_data(reader, each.content.data(), each.content.size());
      }
    }
    CHECK(result == ARCHIVE_EOF);
    archive_read_free(reader);
    return found;
  }

  void in(const std::string& path, const std::vector<std::pair<std::string, Entry>>& entries) const {
    const UniqueFd tar = memory_file();
    archive* writer = archive_write_new();
    archive_write_set_format_pax(writer);
    archive_write_open_fd(writer, tar.get());
    for (const auto& [name, each] : entries) {
      archive_entry* entry = archive_entry_new();
      archive_entry_copy_pathname(entry, name.c_str());
      archive_entry_set_filetype(entry, each.type);
      archive_entry_set_perm(entry, each.mode);
      archive_entry_set_uid(entry, each.uid);
      archive_entry_set_gid(entry, each.uid);
      archive_entry_set_mtime(entry, 1'000'000'000, 5);
      if (!each.link.empty()) archive_entry_copy_hardlink(entry, each.link.c_str());
      if (each.type == AE_IFLNK) archive_entry_copy_symlink(entry, each.content.c_str());
      const bool data = each.type == AE_IFREG && each.link.empty();
      archive_entry_set_size(entry, data ? static_cast<la_int64_t>(each.content.size()) : 0);
      archive_write_header(writer, entry);
      if (data) archive_write_data(writer, each.content.data(), each.content.size());
      archive_entry_free(entry);
    }
    archive_write_free(writer);
    ::lseek(tar.get(), 0, SEEK_SET);
    copy_in(files(), path, tar.get());
  }

  bool refuses(const std::vector<std::pair<std::string, Entry>>& entries, const std::string& with) const {
    try {
      in("/area", entries);
    } catch (const Error& error) {
      INFO(error.message());
      return error.message().find(with) != std::string::npos;
    }
    return false;
  }

  TempDirectory directory;
  UniqueFd fd;
};

}  // namespace

TEST_CASE("a file is copied out under its own name", "[runners][files]") {
  const Sandbox sandbox;
  const auto found = sandbox.out("/etc/passwd");
  REQUIRE(found.size() == 1);
  CHECK(found.at("passwd").content == "inside");
  CHECK(found.at("passwd").uid == 0);
}

TEST_CASE("a tree is copied out with links, FIFOs, holes and odd names", "[runners][files]") {
  const Sandbox sandbox;
  const fs::path work = sandbox.root() / "area";
  Sandbox::write(work / "a", "one");
  fs::create_hard_link(work / "a", work / "b");
  fs::create_symlink("/nowhere", work / "link");
  REQUIRE(::mkfifo((work / "fifo").c_str(), 0600) == 0);
  Sandbox::write(work / "n\xff\n", "odd");
  {
    const UniqueFd sparse(::open((work / "sparse").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    REQUIRE(::pwrite(sparse.get(), "end", 3, 1 << 30) == 3);
    REQUIRE(::ftruncate(sparse.get(), 2 << 29) == 0);
    REQUIRE(::pwrite(sparse.get(), "mid", 3, 1 << 20) == 3);
  }
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (work / "socket").c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);

  const auto found = sandbox.out("/area");
  CHECK(found.size() == 7);
  CHECK(found.at("area/").type == AE_IFDIR);
  CHECK(found.at("area/a").content == "one");
  CHECK(found.at("area/b").link == "area/a");
  CHECK(found.at("area/link").content == "/nowhere");
  CHECK(found.at("area/fifo").type == AE_IFIFO);
  CHECK(found.at("area/n\xff\n").content == "odd");
  CHECK(found.at("area/sparse").size == 1 << 30);
}

TEST_CASE("a sparse file stays small on its way out and sparse on its way in", "[runners][files]") {
  const Sandbox sandbox;
  const fs::path from = sandbox.root() / "etc/sparse";
  {
    const UniqueFd file(::open(from.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    REQUIRE(::pwrite(file.get(), "middle", 6, 64 << 20) == 6);
    REQUIRE(::ftruncate(file.get(), 128 << 20) == 0);
  }
  const UniqueFd tar = memory_file();
  copy_out(sandbox.files(), "/etc/sparse", tar.get());
  CHECK(::lseek(tar.get(), 0, SEEK_END) < 1 << 20);
  ::lseek(tar.get(), 0, SEEK_SET);
  copy_in(sandbox.files(), "/area", tar.get());
  struct stat info {};
  REQUIRE(::stat((sandbox.root() / "area/sparse").c_str(), &info) == 0);
  CHECK(info.st_size == 128 << 20);
  CHECK(info.st_blocks * 512 < 1 << 20);
  const std::string copied = read_file(sandbox.root() / "area/sparse", 1 << 30);
  CHECK(copied.substr(64 << 20, 6) == "middle");
  CHECK(copied.find_first_not_of('\0') == 64 << 20);
}

TEST_CASE("links at the end of a path are copied as links, links on the way stay inside", "[runners][files]") {
  const Sandbox sandbox;
  fs::create_symlink(sandbox.outside(), sandbox.root() / "absolute");
  fs::create_symlink("../../../../../../.." + sandbox.outside().string(), sandbox.root() / "dots");
  fs::create_symlink("/etc", sandbox.root() / "etc2");
  CHECK(sandbox.out("/absolute").at("absolute").type == AE_IFLNK);
  CHECK(sandbox.out("/etc2/passwd").at("passwd").content == "inside");
  for (const char* path :
       {"/absolute/passwd", "/dots/passwd", "/absolute/", "/../outside/passwd", "/etc/../../outside/passwd"})
    CHECK_THROWS_AS(sandbox.out(path), Error);
  // Whatever it is called, / is the sandbox's.
  CHECK(sandbox.out("/../../..").contains("./etc/passwd"));
  CHECK_FALSE(sandbox.out("/").contains("./outside/passwd"));
}

TEST_CASE("files are copied in with content, mode and time, and replace files but no directories", "[runners][files]") {
  const Sandbox sandbox;
  Sandbox::write(sandbox.root() / "area/old", "old");
  fs::create_symlink("/etc/passwd", sandbox.root() / "area/pointer");
  fs::create_directories(sandbox.root() / "area/full/of");
  sandbox.in("/area", {{"old", {.content = "new"}},
                       {"pointer", {.content = "no link any more"}},
                       {"deep/er/file", {.content = "x", .mode = 0755}},
                       {"dir/", {.type = AE_IFDIR, .mode = 0500}},
                       {"dir/in", {.content = "read-only directory"}},
                       {"hard", {.link = "old"}},
                       {"fifo", {.type = AE_IFIFO, .mode = 0600}},
                       {"link", {.type = AE_IFLNK, .content = "old"}}});
  const fs::path work = sandbox.root() / "area";
  CHECK(read_file(work / "old") == "new");
  CHECK(read_file(work / "pointer") == "no link any more");
  CHECK(read_file(sandbox.root() / "etc/passwd") == "inside");
  CHECK(fs::hard_link_count(work / "old") == 2);
  CHECK(fs::read_symlink(work / "link") == "old");
  CHECK(fs::is_fifo(work / "fifo"));
  struct stat info {};
  REQUIRE(::stat((work / "deep/er/file").c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0755);
  CHECK(info.st_mtim.tv_sec == 1'000'000'000);
  REQUIRE(::stat((work / "dir").c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0500);
  CHECK(info.st_mtim.tv_sec == 1'000'000'000);
  ::chmod((work / "dir").c_str(), 0700);
  CHECK(sandbox.refuses({{"full", {.content = "x"}}}, "a directory is in its place"));
  CHECK(fs::exists(work / "full/of"));
}

TEST_CASE("links that the sandbox has are followed within it", "[runners][files]") {
  const Sandbox sandbox;
  fs::create_directories(sandbox.root() / "usr/lib");
  fs::create_symlink("/usr/lib", sandbox.root() / "area/lib");
  fs::create_symlink(sandbox.outside(), sandbox.root() / "area/evil");
  sandbox.in("/area", {{"lib/", {.type = AE_IFDIR, .mode = 0755}}, {"lib/x", {.content = "x"}}});
  CHECK(read_file(sandbox.root() / "usr/lib/x") == "x");
  CHECK(fs::is_symlink(sandbox.root() / "area/lib"));
  CHECK_THROWS_AS(sandbox.in("/area", {{"evil/passwd", {.content = "x"}}}), Error);
  CHECK_THROWS_AS(sandbox.in("/area/evil", {{"passwd", {.content = "x"}}}), Error);
  CHECK(read_file(sandbox.outside() / "passwd") == "SECRET");
}

TEST_CASE("entries that would lead elsewhere are refused by name", "[runners][files]") {
  const Sandbox sandbox;
  CHECK(sandbox.refuses({{"/etc/passwd", {.content = "x"}}}, "'/etc/passwd': its name is absolute"));
  CHECK(sandbox.refuses({{"../etc/passwd", {.content = "x"}}}, "leads out"));
  CHECK(sandbox.refuses({{"a/../../etc/passwd", {.content = "x"}}}, "leads out"));
  CHECK(sandbox.refuses({{"l", {.type = AE_IFLNK, .content = "/etc"}}, {"l/passwd", {.content = "x"}}},
                        "through the symlink 'l'"));
  CHECK(sandbox.refuses({{"hard", {.link = "../etc/passwd"}}}, "leads out"));
  CHECK(sandbox.refuses({{"hard", {.link = "/etc/passwd"}}}, "absolute"));
  CHECK(sandbox.refuses({{"null", {.type = AE_IFCHR}}}, "it is a device"));
  CHECK(sandbox.refuses({{"x", {.content = "x", .uid = 4'000'000}}}, "no user 4000000"));
  CHECK_THROWS_AS(sandbox.in("/none", {{"x", {.content = "x"}}}), Error);
  CHECK_THROWS_AS(sandbox.in("/etc/passwd", {{"x", {.content = "x"}}}), Error);
  CHECK(read_file(sandbox.root() / "etc/passwd") == "inside");
  CHECK(read_file(sandbox.outside() / "passwd") == "SECRET");
}

TEST_CASE("a directory of the stream takes the place of a symlink of the stream", "[runners][files]") {
  const Sandbox sandbox;
  sandbox.in("/area", {{"l", {.type = AE_IFLNK, .content = "/etc"}},
                       {"l/", {.type = AE_IFDIR, .mode = 0755}},
                       {"l/passwd", {.content = "x"}}});
  CHECK(read_file(sandbox.root() / "area/l/passwd") == "x");
  CHECK(read_file(sandbox.root() / "etc/passwd") == "inside");
}

TEST_CASE("a tree too deep to be honest is refused, not followed", "[runners][files]") {
  const Sandbox sandbox;
  UniqueFd at = open_file(sandbox.root() / "area", O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 2000; ++i) {
    REQUIRE(::mkdirat(at.get(), "d", 0755) == 0);
    at = UniqueFd(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  CHECK_THROWS_WITH(sandbox.out("/area/d"), Catch::Contains("cannot pack"));
  CHECK(sandbox.out("/etc").size() == 2);
}

TEST_CASE("bytes that are no tar stream, or a torn one, are refused", "[runners][files]") {
  const Sandbox sandbox;
  const UniqueFd tar = memory_file();
  write_all(tar.get(), std::string(2000, 'x'));
  ::lseek(tar.get(), 0, SEEK_SET);
  CHECK_THROWS_AS(copy_in(sandbox.files(), "/area", tar.get()), Error);

  const UniqueFd whole = memory_file();
  Sandbox::write(sandbox.root() / "etc/big", std::string(100'000, 'y'));
  copy_out(sandbox.files(), "/etc/big", whole.get());
  REQUIRE(::ftruncate(whole.get(), 50'000) == 0);
  ::lseek(whole.get(), 0, SEEK_SET);
  CHECK_THROWS_AS(copy_in(sandbox.files(), "/area", whole.get()), Error);
}

TEST_CASE("copying survives someone inside who swaps directories for links all the time", "[runners][files]") {
  const Sandbox sandbox;
  const fs::path work = sandbox.root() / "area";
  fs::create_directories(work / "d");
  Sandbox::write(work / "d/passwd", "inside");
  fs::create_symlink(sandbox.outside(), work / "evil");
  fs::create_symlink("/etc", work / "harmless");
  REQUIRE(::mkfifo((work / "fifo").c_str(), 0600) == 0);
  std::atomic<bool> end = false;
  std::thread attacker([&] {
    const std::string d = work / "d", evil = work / "evil", file = work / "d/passwd", fifo = work / "fifo";
    while (!end) {
      ::renameat2(AT_FDCWD, d.c_str(), AT_FDCWD, evil.c_str(), RENAME_EXCHANGE);
      ::renameat2(AT_FDCWD, d.c_str(), AT_FDCWD, evil.c_str(), RENAME_EXCHANGE);
      ::renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, fifo.c_str(), RENAME_EXCHANGE);
    }
  });
  const auto stop = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  std::size_t done = 0, leaked = 0;
  while (std::chrono::steady_clock::now() < stop) {
    for (const char* path : {"/area/d/passwd", "/area", "/area/d"}) {
      try {
        for (const auto& [name, entry] : sandbox.out(path)) leaked += entry.content == "SECRET";
        ++done;
      } catch (const Error&) {
        // Refused because it led nowhere at that moment.
      }
    }
    for (const char* target : {"/area/d", "/area"}) {
      try {
        sandbox.in(target, {{"d/new", {.content = "new"}}, {"new", {.content = "new"}}});
      } catch (const Error&) {
      }
    }
  }
  end = true;
  attacker.join();
  CHECK(done > 20);
  CHECK(leaked == 0);
  CHECK(read_file(sandbox.outside() / "passwd") == "SECRET");
  CHECK(std::distance(fs::directory_iterator(sandbox.outside()), {}) == 1);
}

TEST_CASE("a difference is added, modified or deleted, and a replaced directory shows what it hides",
          "[runners][files]") {
  if (::getuid() != 0) return;  // whiteouts and trusted.* are root's
  const TempDirectory directory(fs::temp_directory_path());
  const fs::path lower = directory.path() / "lower", upper = directory.path() / "upper";
  for (const fs::path& each : {lower / "etc", lower / "gone", lower / "opaque", lower / "same", lower / "was-dir",
                               upper / "etc", upper / "opaque", upper / "new/sub"})
    fs::create_directories(each);
  for (const fs::path& each :
       {lower / "etc/conf", lower / "etc/keep", lower / "opaque/a", lower / "opaque/b", lower / "was-dir/x",
        upper / "etc/conf", upper / "opaque/b", upper / "new/sub/f", upper / "was-dir"})
    Sandbox::write(each, "x");
  REQUIRE(::mknod((upper / "gone").c_str(), S_IFCHR, 0) == 0);
  REQUIRE(::mknod((upper / "never-was").c_str(), S_IFCHR, 0) == 0);
  REQUIRE(::setxattr((upper / "opaque").c_str(), "trusted.overlay.opaque", "y", 1, 0) == 0);
  const UniqueFd u = open_file(upper, O_RDONLY | O_DIRECTORY), l = open_file(lower, O_RDONLY | O_DIRECTORY);
  std::string text;
  for (const auto& change : diff_layer(u.get(), l.get()))
    text += std::string(1, "ACD"[static_cast<int>(change.kind)]) + ' ' + change.path + '\n';
  CHECK(text ==
        "C /etc\nC /etc/conf\nD /gone\nA /new\nA /new/sub\nA /new/sub/f\nC /opaque\nD /opaque/a\nC /opaque/b\nC "
        "/was-dir\n");
}
