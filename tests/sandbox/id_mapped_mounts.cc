#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/isolation/id_map.h"
#include "tests/support/skip.h"

using namespace dsec;
using namespace dsec::runners;

TEST_CASE("files seen through an id-mapped mount belong to the block outside and to root on disk", "[ids]") {
  const TempDirectory directory(std::filesystem::temp_directory_path());
  const IdMap map = id_map_for("aaaaaaaaaaaaaaaaaaaaaa", kDefaultIdRange);
  const UniqueFd users = make_user_namespace(map);
  UniqueFd tree(static_cast<int>(
      ::syscall(SYS_open_tree, AT_FDCWD, directory.path().c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  REQUIRE(tree);
  REQUIRE(::close(::openat(tree.get(), "before", O_CREAT | O_WRONLY | O_CLOEXEC, 0644)) == 0);
  idmap_mount(tree.get(), users.get(), "the test's directory");

  struct stat seen {};
  REQUIRE(::fstatat(tree.get(), "before", &seen, 0) == 0);
  CHECK(seen.st_uid == map.first);
  CHECK(seen.st_gid == map.first);

  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    if (::setns(users.get(), CLONE_NEWUSER) != 0) ::_exit(1);
    if (::setresgid(7, 7, 7) != 0 || ::setresuid(0, 0, 0) != 0) ::_exit(2);
    if (::openat(tree.get(), "inside", O_CREAT | O_WRONLY | O_CLOEXEC, 0644) < 0) ::_exit(3);
    struct stat inside {};
    if (::fstatat(tree.get(), "before", &inside, 0) != 0 || inside.st_uid != 0) ::_exit(4);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WEXITSTATUS(status) == 0);
  struct stat on_disk {};
  REQUIRE(::stat((directory.path() / "inside").c_str(), &on_disk) == 0);
  CHECK(on_disk.st_uid == 0);
  CHECK(on_disk.st_gid == 7);
  // An id that the map does not have cannot write at all.
  CHECK(::openat(tree.get(), "host-root", O_CREAT | O_WRONLY | O_CLOEXEC, 0644) < 0);
  CHECK(errno == EOVERFLOW);
}

TEST_CASE("user namespaces are made from many threads' memory without disturbing it", "[ids]") {
  for (int i = 0; i < 50; ++i) {
    const UniqueFd users = make_user_namespace({.first = 0x10000000u + static_cast<unsigned>(i) * kIdCount});
    CHECK(users);
  }
  // None of the short-lived children is left for us to reap.
  CHECK(::waitpid(-1, nullptr, WNOHANG | __WALL) == -1);
  CHECK(errno == ECHILD);
}
