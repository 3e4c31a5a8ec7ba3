#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/sandbox_id.h"
#include "runners/isolation/cgroup_ops.h"
#include "runners/isolation/cgroups.h"
#include "tests/support/skip.h"

using namespace dsec;
using namespace dsec::runners;
using namespace std::chrono_literals;

namespace {

/// A host id of this test alone, whose groups are gone afterwards.
class Groups {
 public:
  Groups() : host_id_(engine::random_id(6)), id(host_id_ + engine::random_id(16)), host(host_id_) {}
  ~Groups() {
    SandboxCgroups::remove(host, id, 5s);
    host.remove_unused_parents();
  }

 private:
  std::string host_id_;

 public:
  std::string id;
  CgroupHost host;

  /// Directories of this test anywhere in the cgroup trees.
  std::size_t left() const {
    std::size_t found = 0;
    for (const CgroupHierarchy& each : host.hierarchies()) {
      if (each.root.empty()) continue;
      found += std::filesystem::exists(each.root + "/dsec-" + host_id_);
      found += std::filesystem::exists(each.root + '/' + id);
    }
    return found;
  }
};

/// Starts `action` in a child inside the groups of a sandbox, as a runner does: cloned into v2, joined to v1 ones.
pid_t start_in(const SandboxCgroups& groups, int v2, const std::function<int()>& action) {
  const auto procs = groups.join_descriptors();
  clone_args arguments{};
  arguments.flags = v2 >= 0 ? CLONE_INTO_CGROUP : 0;
  arguments.cgroup = v2 >= 0 ? static_cast<std::uint64_t>(v2) : 0;
  arguments.exit_signal = SIGCHLD;
  const long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) {
    for (const UniqueFd& each : procs)
      if (cgroup::join(each.get()) != 0) ::_exit(99);
    ::_exit(action());
  }
  REQUIRE(pid > 0);
  return static_cast<pid_t>(pid);
}

int wait_for(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return status;
}

int sleep_forever() {
  for (;;) ::pause();
}

/// Slow machines take their time.
template <typename Condition>
bool soon(Condition&& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

bool can_limit(const CgroupHost& host, const Limits& limits) {
  try {
    host.check(limits);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("a sandbox's processes are killed and its groups removed by its id alone", "[cgroups]") {
  Groups test;
  std::string why;
  if (!test.host.has_lifecycle(&why)) SKIP_BECAUSE(why);
  pid_t pid = 0;
  {
    const auto groups = SandboxCgroups::create(test.host, test.id, {});
    REQUIRE(groups.v2() >= 0);
    const UniqueFd sub = groups.make_subgroup("x1");
    pid = start_in(groups, sub.get(), [] {
      for (int i = 0; i < 20; ++i)
        if (::fork() == 0) sleep_forever();
      return sleep_forever();
    });
    CHECK(soon([&] { return groups.stats().pids == 21; }));
    CHECK(cgroup::populated(groups.v2()) == 1);
  }
  // Another process, after a crash.
  const CgroupHost other(test.id.substr(0, 6));
  SandboxCgroups::remove(other, test.id, 5s);
  CHECK(WTERMSIG(wait_for(pid)) == SIGKILL);
  CHECK(SandboxCgroups::open(other, test.id).groups().empty());
  SandboxCgroups::remove(other, test.id, 5s);  // again: nothing to do
  other.remove_unused_parents();               // not while the first, for all it knows, is about to make a sandbox
  CHECK(test.left() >= 1);
  test.host.remove_unused_parents();
  CHECK(test.left() == 0);
}

TEST_CASE("only the subgroup of one command is killed", "[cgroups]") {
  Groups test;
  if (!test.host.has_lifecycle()) SKIP_BECAUSE("no cgroup v2");
  const auto groups = SandboxCgroups::create(test.host, test.id, {});
  const pid_t stays = start_in(groups, groups.v2(), sleep_forever);
  const UniqueFd sub = groups.make_subgroup("x1");
  const pid_t goes = start_in(groups, sub.get(), sleep_forever);
  groups.remove_subgroup("x1", 5s);
  CHECK(WTERMSIG(wait_for(goes)) == SIGKILL);
  CHECK(::waitpid(stays, nullptr, WNOHANG) == 0);
  SandboxCgroups::remove(test.host, test.id, 5s);
  CHECK(WTERMSIG(wait_for(stays)) == SIGKILL);
}

TEST_CASE("frozen processes do nothing, thawed ones go on, frozen ones can be killed", "[cgroups]") {
  Groups test;
  if (!test.host.has_lifecycle()) SKIP_BECAUSE("no cgroup v2");
  const auto groups = SandboxCgroups::create(test.host, test.id, {});
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  auto* counter = static_cast<volatile unsigned long*>(page);
  const pid_t pid = start_in(groups, groups.v2(), [counter] {
    for (;;) {
      *counter = *counter + 1;
      ::usleep(1000);
    }
    return 0;
  });
  CHECK(soon([&] { return *counter > 0; }));
  groups.freeze(true);
  const unsigned long before = *counter;
  std::this_thread::sleep_for(50ms);
  CHECK(*counter == before);
  groups.freeze(false);
  CHECK(soon([&] { return *counter > before; }));
  groups.freeze(true);
  SandboxCgroups::remove(test.host, test.id, 5s);
  CHECK(WTERMSIG(wait_for(pid)) == SIGKILL);
  ::munmap(page, 4096);
}

TEST_CASE("a memory limit kills what exceeds it, and the kill is counted", "[cgroups]") {
  Groups test;
  const Limits limits{.memory = 32ull << 20};
  if (!can_limit(test.host, limits)) SKIP_BECAUSE("no memory controller");
  const auto groups = SandboxCgroups::create(test.host, test.id, limits);
  REQUIRE(groups.memory() != nullptr);
  CHECK(groups.stats().oom_kills == 0u);
  const pid_t pid = start_in(groups, groups.v2(), [] {
    for (int i = 0; i < 64; ++i) {
      void* more = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (more == MAP_FAILED) return 1;
      std::memset(more, 1, 1 << 20);
    }
    return 0;
  });
  const int status = wait_for(pid);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(groups.stats().oom_kills.value_or(0) >= 1);
}

TEST_CASE("a host that shows no v2 hierarchy still has one to kill and freeze by", "[cgroups]") {
  std::thread([] {
    // Only this thread's view changes.
    REQUIRE(::unshare(CLONE_FS | CLONE_NEWNS) == 0);
    REQUIRE(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
    for (const CgroupHierarchy& each : parse_cgroup_mounts(read_file("/proc/thread-self/mountinfo")))
      if (each.v2) REQUIRE(::umount2(each.root.c_str(), MNT_DETACH) == 0);
    Groups test;
    CHECK(test.host.hierarchies().back().v2);
    CHECK(test.host.hierarchies().back().root.empty());
    const auto groups = SandboxCgroups::create(test.host, test.id, {});
    REQUIRE(groups.v2() >= 0);
    const pid_t pid = start_in(groups, groups.v2(), sleep_forever);
    groups.freeze(true);
    SandboxCgroups::remove(test.host, test.id, 5s);
    CHECK(WTERMSIG(wait_for(pid)) == SIGKILL);
  }).join();
}

TEST_CASE("a limit that the host cannot enforce is refused by its name", "[cgroups]") {
  std::thread([] {
    REQUIRE(::unshare(CLONE_FS | CLONE_NEWNS) == 0);
    REQUIRE(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
    for (const CgroupHierarchy& each : parse_cgroup_mounts(read_file("/proc/thread-self/mountinfo")))
      REQUIRE(::mount(nullptr, each.root.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0);
    Groups test;
    std::string why;
    CHECK_FALSE(test.host.has_lifecycle(&why));
    CHECK(why.find("read-only") != std::string::npos);
    const auto message = [&](const Limits& limits) {
      try {
        test.host.check(limits);
      } catch (const Error& error) {
        return error.message();
      }
      return std::string("nothing was refused");
    };
    CHECK(message({.memory = 1 << 30}).find("cannot enforce the memory limit of the sandbox: ") == 0);
    CHECK(message({.cpus = 1.0}).find("cannot enforce the cpu limit of the sandbox: ") == 0);
    CHECK(message({.pids = 10}).find("cannot enforce the pids limit of the sandbox: ") == 0);
    CHECK(message({}) == "nothing was refused");
  }).join();
}

TEST_CASE("groups are made below the one that the administrator names, and that one stays", "[cgroups]") {
  const std::string name = "test-parent-" + engine::random_id(8);
  std::string v2;
  for (const CgroupHierarchy& each : parse_cgroup_mounts(read_file("/proc/self/mountinfo")))
    if (each.v2) v2 = each.root;
  if (v2.empty()) SKIP_BECAUSE("no cgroup v2");
  const std::string parent = v2 + '/' + name;
  REQUIRE(::mkdir(parent.c_str(), 0755) == 0);
  ::setenv("DSEC_CGROUP_PARENT", ("/" + name).c_str(), 1);
  {
    Groups test;
    const auto groups = SandboxCgroups::create(test.host, test.id, {});
    CHECK(std::filesystem::exists(parent + "/dsec-" + test.id.substr(0, 6) + '/' + test.id));
    CHECK(test.left() == 0);
  }
  ::setenv("DSEC_CGROUP_PARENT", "../elsewhere", 1);
  CHECK_THROWS_AS(CgroupHost("abcdef"), Error);
  ::unsetenv("DSEC_CGROUP_PARENT");
  CHECK(::rmdir(parent.c_str()) == 0);
}

TEST_CASE("nobody removes the parent of a sandbox that is being made", "[cgroups]") {
  Groups test;
  if (!test.host.has_lifecycle()) SKIP_BECAUSE("no cgroup v2");
  {
    const auto groups = SandboxCgroups::create(test.host, test.id, {});
    // Its group is gone, its maker is not: the keeper's group is asked for next.
    SandboxCgroups::remove(test.host, test.id, 1s);
    const UniqueFd keepers = test.host.keepers_group();
    test.host.remove_unused_parents();
    CgroupHost(test.id.substr(0, 6)).remove_unused_parents();
    const pid_t pid = start_in(groups, keepers.get(), [] { return 0; });
    CHECK(wait_for(pid) == 0);
  }
  test.host.remove_unused_parents();
  CHECK(test.left() == 0);
}

TEST_CASE("keepers have a group of their own, which goes when the last has ended", "[cgroups]") {
  Groups test;
  if (!test.host.has_lifecycle()) SKIP_BECAUSE("no cgroup v2");
  const UniqueFd group = test.host.keepers_group();
  const pid_t pid = start_in(SandboxCgroups::create(test.host, test.id, {}), group.get(), sleep_forever);
  SandboxCgroups::remove(test.host, test.id, 5s);
  test.host.remove_unused_parents();
  CHECK(cgroup::populated(test.host.keepers_group().get()) == 1);
  ::kill(pid, SIGKILL);
  wait_for(pid);
  test.host.remove_unused_parents();
  CHECK(test.left() == 0);
}

TEST_CASE("a limit of tasks makes fork fail", "[cgroups]") {
  Groups test;
  const Limits limits{.pids = 5};
  if (!can_limit(test.host, limits)) SKIP_BECAUSE("no pids controller");
  const auto groups = SandboxCgroups::create(test.host, test.id, limits);
  const pid_t pid = start_in(groups, groups.v2(), [] {
    int made = 0;
    for (int i = 0; i < 20; ++i) {
      const pid_t child = ::fork();
      if (child == 0) sleep_forever();
      if (child > 0) ++made;
    }
    return made;
  });
  CHECK(WEXITSTATUS(wait_for(pid)) == 4);
}

TEST_CASE("a limit of processor time holds", "[cgroups]") {
  Groups test;
  const Limits limits{.cpus = 0.2};
  if (!can_limit(test.host, limits)) SKIP_BECAUSE("no cpu controller");
  const auto groups = SandboxCgroups::create(test.host, test.id, limits);
  const pid_t pid = start_in(groups, groups.v2(), [] {
    for (;;) {
    }
    return 0;
  });
  // A busy host may give less for a while, and never more.
  double most = 0;
  for (int tries = 0; tries < 8 && most < 0.95 * 0.2; ++tries) {
    const auto begin = std::chrono::steady_clock::now();
    const auto before = groups.stats().cpu_usec;
    std::this_thread::sleep_for(2s);
    const auto used = static_cast<double>(groups.stats().cpu_usec - before);
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
    // Of a period that both ends cut.
    CHECK(used <= 1.05 * 0.2 * (taken.count() + 100'000));
    most = std::max(most, used / taken.count());
  }
  CHECK(most >= 0.95 * 0.2);
  ::kill(pid, SIGKILL);
  wait_for(pid);
}

TEST_CASE("a class is a weight among those of a host, and goes with its last sandbox", "[cgroups]") {
  for (const CpuClass each : {CpuClass::Latency, CpuClass::Batch}) {
    Groups test;
    const Limits limits{.cpu_class = each};
    if (!can_limit(test.host, limits) || !test.host.weighs_processors(each)) SKIP_BECAUSE("no cpu controller");
    pid_t pid = 0;
    {
      const auto groups = SandboxCgroups::create(test.host, test.id, limits);
      pid = start_in(groups, groups.v2(), sleep_forever);
      CHECK(SandboxCgroups::open(test.host, test.id).groups().size() == groups.groups().size());
    }
    SandboxCgroups::remove(test.host, test.id, 5s);
    wait_for(pid);
    CHECK(SandboxCgroups::open(test.host, test.id).groups().empty());
    test.host.remove_unused_parents();
    CHECK(test.left() == 0);
  }
}

TEST_CASE("limits of what lives change, and come back when one cannot", "[cgroups]") {
  Groups test;
  const Limits limits{.memory = 256ull << 20};
  if (!can_limit(test.host, {.cpus = 1.0, .memory = 1 << 20, .pids = 1})) SKIP_BECAUSE("not all controllers");
  auto groups = SandboxCgroups::create(test.host, test.id, limits);
  const pid_t pid = start_in(groups, groups.v2(), [] {
    void* more = ::mmap(nullptr, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(more, 1, 64 << 20);
    return sleep_forever();
  });
  CHECK(soon([&] { return groups.stats().memory_bytes >= 64u << 20; }));
  int announced = 0;
  const auto change = [&](const Limits& from, const Limits& to) {
    groups.freeze(true);
    SandboxCgroups::change(test.host, test.id, from, to, [&](const SandboxCgroups& now) {
      ++announced;
      CHECK(now.v2() >= 0);
      CHECK_FALSE(now.join_descriptors().empty());
    });
    groups.freeze(false);
  };
  const Limits more{.cpus = 0.5, .memory = 128ull << 20, .pids = 10, .cpu_class = CpuClass::Batch};
  const bool moves = SandboxCgroups::moves(test.host, test.id, more);
  change(limits, more);
  CHECK(announced == (moves ? 1 : 0));
  CHECK_FALSE(SandboxCgroups::moves(test.host, test.id, more));
  CHECK(SandboxCgroups::open(test.host, test.id).stats().pids == 1);
  const auto refused = [&](const Limits& to) {
    groups.freeze(true);
    CHECK_THROWS_AS(SandboxCgroups::change(test.host, test.id, more, to, [](const SandboxCgroups&) {}), Error);
    groups.freeze(false);
  };
  refused({.cpus = 0.5, .memory = 32ull << 20, .pids = 1, .cpu_class = CpuClass::Batch});
  CHECK(::kill(pid, 0) == 0);
  CHECK_FALSE(SandboxCgroups::moves(test.host, test.id, more));
  change(more, {.cpu_class = CpuClass::Latency});
  CHECK(SandboxCgroups::open(test.host, test.id).stats().oom_kills == 0u);
  SandboxCgroups::remove(test.host, test.id, 5s);
  wait_for(pid);
  groups = SandboxCgroups::open(test.host, test.id);  // lets go of those that are gone
  test.host.remove_unused_parents();
  CHECK(test.left() == 0);
}

TEST_CASE("groups of v1 are made only for limits that were asked for", "[cgroups]") {
  Groups test;
  const auto plain = SandboxCgroups::create(test.host, test.id, {});
  CHECK(plain.groups().size() <= 1);
  CHECK(plain.join_descriptors().empty());
}

TEST_CASE("statistics without a memory group add up the processes' own memory", "[cgroups]") {
  Groups test;
  if (!test.host.has_lifecycle()) SKIP_BECAUSE("no cgroup v2");
  const auto groups = SandboxCgroups::create(test.host, test.id, {});
  const pid_t pid = start_in(groups, groups.v2(), [] {
    void* more = ::mmap(nullptr, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(more, 1, 8 << 20);
    return sleep_forever();
  });
  CHECK(soon([&] { return groups.stats().memory_bytes >= 8u << 20; }));
  const CgroupStats stats = groups.stats();
  CHECK(stats.memory_bytes < 64u << 20);
  CHECK(stats.pids == 1);
  SandboxCgroups::remove(test.host, test.id, 5s);
  wait_for(pid);
}
