#include "core/base/files.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"

namespace dsec {
namespace {
namespace fs = std::filesystem;

TEST_CASE("a failed atomic write leaves the old file and no temporary one", "[base][files]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path file = scratch.path() / "f";
  write_file_atomic(file, "one");
  CHECK(read_file(file) == "one");
  fs::create_directory(scratch.path() / "d");
  fs::create_directory(scratch.path() / "d/full");
  CHECK_THROWS_AS(write_file_atomic(scratch.path() / "d", "two"), Error);
  CHECK(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()) == 2);
}

TEST_CASE("a temporary file is stale once the process that made it is gone", "[base][files]") {
  TempDirectory scratch(fs::temp_directory_path());
  const TempFile mine(scratch.path());
  CHECK_FALSE(temp_file_is_stale(mine.path().filename().native()));
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  const std::string dead = ".tmp-" + std::to_string(child) + "-";
  CHECK(temp_file_is_stale(dead + "1-abcdef"));
  for (const char* other : {".tmp-abcdef", "data", ".tmp-", ".tmp-12", ".tmp-12-", ".tmp-12-7", ".tmp--1-7-a"})
    CHECK_FALSE(temp_file_is_stale(other));
}

TEST_CASE("removing a tree does not follow symlinks", "[base][files]") {
  TempDirectory scratch(fs::temp_directory_path());
  fs::create_directories(scratch.path() / "keep/sub");
  fs::create_directories(scratch.path() / "gone/sub");
  fs::create_symlink(scratch.path() / "keep", scratch.path() / "gone/link");
  remove_tree(scratch.path() / "gone");
  CHECK_FALSE(fs::exists(scratch.path() / "gone"));
  CHECK(fs::exists(scratch.path() / "keep/sub"));
  remove_tree(scratch.path() / "gone");
}

TEST_CASE("a lock held elsewhere is seen", "[base][files]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path file = scratch.path() / "lock";
  FileLock held(file, FileLock::Mode::Exclusive);
  CHECK_FALSE(FileLock::try_lock(file, FileLock::Mode::Shared));
}

TEST_CASE("a file over the limit is refused", "[base][files]") {
  TempDirectory scratch(fs::temp_directory_path());
  std::ofstream(scratch.path() / "f") << std::string(100, 'x');
  CHECK_THROWS_AS(read_file(scratch.path() / "f", 99), Error);
  CHECK(read_file(scratch.path() / "f", 100).size() == 100);
}

}  // namespace
}  // namespace dsec
