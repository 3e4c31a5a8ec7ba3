#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mount.h"
#include "tests/support/container_fixture.h"

namespace dsec {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::command;
using test::ContainerFixture;
using test::eventually;
using test::shell;
using Cause = ExecResult::Cause;
namespace fs = std::filesystem;

TEST_CASE("a command that takes too much memory is told from others", "[runner][limits]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.limits.memory = 32u << 20;
  const auto sandbox = host.start(spec);
  const auto outcome = host.run(sandbox, command({"/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"}));
  CHECK(outcome.result.cause == Cause::OutOfMemory);
  CHECK(outcome.result.shell_code() == 137);
  CHECK(host.run(sandbox, "echo still here").out == "still here\n");
}

TEST_CASE("a sandbox that has used up its tasks can still be entered and stopped", "[runner][limits]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.limits.pids = 20;
  const auto sandbox = host.start(spec);
  auto hog = host.runner().exec(sandbox, shell("while :; do sleep 1000 & done 2>/dev/null"));
  CHECK(eventually([&] { return host.processes().size() >= 18; }));
  // The shell of ours can run, though not fork.
  CHECK(host.run(sandbox, "echo $(( 1 + 1 ))").out == "2\n");
  host.runner().stop(sandbox, 0ms);
  CHECK(eventually([&] { return host.processes().empty(); }));
}

TEST_CASE("binds show the host's files, and those below read-only ones stay as they are", "[runner][mounts]") {
  ContainerFixture host;
  const fs::path shared = host.work() / "shared";
  fs::create_directories(shared / "dir");
  std::ofstream(shared / "dir/file") << "from the host\n";
  SandboxSpec spec;
  spec.binds = {{(shared / "dir").native(), "/data/rw", false},
                {(shared / "dir").native(), "/data/ro", true},
                {(shared / "dir/file").native(), "/etc/one-file", true}};
  const auto sandbox = host.start(spec);
  CHECK(host.run(sandbox, "cat /data/rw/file /etc/one-file; stat -c %u /data/rw/file").out ==
        "from the host\nfrom the host\n0\n");
  CHECK(host.run(sandbox, "echo inside > /data/rw/new").result.exit_code == 0);
  struct stat info = {};
  REQUIRE(::stat((shared / "dir/new").c_str(), &info) == 0);
  CHECK(info.st_uid == 0);
  CHECK_THAT(host.run(sandbox, "echo x > /data/ro/new").err, Contains("Read-only file system"));
}

TEST_CASE("no network means a loopback of one's own, and the host's is the host's", "[runner][network]") {
  ContainerFixture host;
  const auto list = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '";
  const auto alone = host.start();
  CHECK(host.run(alone, list).out == "lo ");
  CHECK(host.run(alone,
                 "ping -c1 -w2 127.0.0.1 >/dev/null 2>&1; nc -l -p 80 127.0.0.1 & sleep 0.2; echo hi | "
                 "nc -w1 127.0.0.1 80 || echo failed")
            .out.find("failed") == std::string::npos);
  SandboxSpec spec;
  spec.network = NetworkMode::Host;
  const auto open = host.start(spec);
  char ours[256] = {};
  REQUIRE(::readlink("/proc/self/ns/net", ours, sizeof ours - 1) > 0);
  CHECK(host.run(open, "readlink /proc/self/ns/net").out == std::string(ours) + "\n");
}

TEST_CASE("a read-only sandbox takes no writes outside its own memory filesystems", "[runner][mounts]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.read_only = true;
  const auto sandbox = host.start(spec);
  CHECK_THAT(host.run(sandbox, "touch /x").err, Contains("Read-only file system"));
  CHECK(host.run(sandbox, "touch /dev/shm/x && echo ok").out == "ok\n");
  CHECK_FALSE(fs::exists(sandbox / "upper"));
}

// How often each of what only commands use is mounted, as PID 1 sees it.
std::pair<int, int> mounts_of_commands(const fs::path& sandbox) {
  const Json state = parse_json(read_file(sandbox / "state.json"), "state");
  std::istringstream lines(read_file("/proc/" + std::to_string(json_u64(state, "init_pid")) + "/mountinfo"));
  std::pair<int, int> count;
  for (std::string line; std::getline(lines, line);) {
    count.first += line.find(" /dev/pts ") != std::string::npos;
    count.second += line.find(" /dev/shm ") != std::string::npos;
  }
  return count;
}

TEST_CASE("what only commands use is mounted once, when the first one comes", "[runner][mounts]") {
  ContainerFixture host;
  SandboxSpec spec;
  for (const UserNamespace users : {UserNamespace::Auto, UserNamespace::Host}) {
    spec.userns = users;
    spec.made_for_command = false;
    const auto waiting = host.start(spec);
    CHECK(mounts_of_commands(waiting) == std::pair{0, 0});
    CHECK(host.run(waiting, "echo x > /dev/shm/x && stat -c %u /dev/shm/x && ls /dev/pts").out == "0\nptmx\n");
    CHECK(host.run(waiting, "cat /dev/shm/x").out == "x\n");
    CHECK(mounts_of_commands(waiting) == std::pair{1, 1});
    spec.made_for_command = true;
    CHECK(mounts_of_commands(host.start(spec)) == std::pair{1, 1});
  }
}

TEST_CASE("a copy finds the memory filesystem of a sandbox that had no command yet", "[runner][mounts]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  const engine::OpenLayers layers = [&] {
    engine::LayerStack stack;
    stack.lowers.push_back(clone_mount(host.tree()));
    return stack;
  };
  const UniqueFd tar(::memfd_create("tar", MFD_CLOEXEC));
  host.runner().copy_out(sandbox, layers, "/etc/passwd", tar.get());
  REQUIRE(::lseek(tar.get(), 0, SEEK_SET) == 0);
  host.runner().copy_in(sandbox, layers, "/dev/shm/", tar.get());
  CHECK(host.run(sandbox, "cmp /etc/passwd /dev/shm/passwd && echo same").out == "same\n");
}

TEST_CASE("with the host's user ids a sandbox keeps no more rights than otherwise", "[runner][userns]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.userns = UserNamespace::Host;
  const auto sandbox = host.start(spec);
  CHECK(host.run(sandbox, "cat /proc/self/uid_map | tr -s ' '").out == " 0 0 4294967295\n");
  CHECK(host.run(sandbox, "grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t'").out ==
        "CapBnd:00000000800405fb\nNoNewPrivs:1\nSeccomp:2\n");
  CHECK(host.run(sandbox, "grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/1/status | tr -d '\t'").out ==
        "CapBnd:0000000000000020\nNoNewPrivs:1\nSeccomp:2\n");
  CHECK(host.run(sandbox, "touch /made && stat -c %u /made").out == "0\n");
  CHECK(host.run(sandbox, "echo 1 > /proc/sys/kernel/hostname; mount -t tmpfs none /tmp").result.exit_code != 0);
}

TEST_CASE("files keep the ids of inside on disk, while processes have unprivileged ones outside", "[runner][userns]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  host.run(sandbox, "touch /made; chown ann /made; touch /root-made");
  struct stat info = {};
  REQUIRE(::stat((sandbox / "upper/made").c_str(), &info) == 0);
  CHECK(info.st_uid == 1000);
  const auto outside = host.run(sandbox, "cat /proc/self/uid_map | tr -s ' ' | cut -d' ' -f3").out;
  CHECK(std::stoul(outside) >= 100000);
}

TEST_CASE("an image whose mount points are links out of it is refused, or stays in", "[runner][hostile]") {
  ContainerFixture host;
  const auto replace = [&](const char* name, const char* target) {
    fs::remove_all(host.tree() / name);
    fs::create_symlink(target, host.tree() / name);
  };
  SECTION("/proc, /sys or /dev elsewhere") {
    for (const char* name : {"proc", "dev", "sys"}) {
      replace(name, "../../../../../../tmp");
      CHECK_THROWS_AS(host.start(), Error);
      CHECK(eventually([&] { return host.processes().empty(); }));
      CHECK(host.cgroups().empty());
      fs::remove(host.tree() / name);
    }
  }
  SECTION("/etc and its files") {
    replace("etc", "/../../../../tmp/etc-elsewhere");
    const auto sandbox = host.start();
    CHECK_THAT(host.run(sandbox, "cat /tmp/etc-elsewhere/hosts").out, Contains("localhost"));
    CHECK_FALSE(fs::exists("/tmp/etc-elsewhere"));
  }
  SECTION("a resolv.conf that points to what is not there") {
    replace("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf");
    const auto sandbox = host.start();
    CHECK(host.run(sandbox, "cat /etc/resolv.conf").result.exit_code == 0);
  }
  SECTION("a bind to a link") {
    fs::create_symlink("/../../../../../tmp/bind-elsewhere", host.tree() / "link");
    SandboxSpec spec;
    spec.binds = {{host.work().native(), "/link", true}};
    try {
      const auto sandbox = host.start(spec);
      CHECK(host.run(sandbox, "ls /tmp/bind-elsewhere").result.exit_code == 0);
    } catch (const Error& error) {
      CHECK_THAT(error.message(), Contains("mount point") || Contains("'/link'"));
    }
    CHECK_FALSE(fs::exists("/tmp/bind-elsewhere"));
  }
}

TEST_CASE("requests that make no sense are refused before anything is made", "[runner]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.config.stop_signal = "SIGNONSENSE";
  CHECK_THROWS_WITH(host.runner().check(spec), Contains("unknown signal 'SIGNONSENSE'"));
  spec = {};
  spec.binds = {{"/no/such/place", "/x", false}};
  CHECK_THROWS_WITH(host.runner().check(spec), Contains("No such file or directory (ENOENT)"));
  spec.binds = {{"/tmp", "/", false}};
  CHECK_THROWS(host.runner().check(spec));
  spec = {};
  for (const std::string& name : {std::string(65, 'a'), std::string("a b"), std::string("a\nb"), std::string("-a")}) {
    spec.hostname = name;
    CHECK_THROWS_WITH(host.runner().check(spec), Contains("is no valid host name"));
  }
  const auto sandbox = host.start();
  CHECK_THROWS_WITH(host.runner().exec(sandbox, command({})), Contains("no command is given"));
  ExecSpec huge = command({"true"});
  huge.env.assign(100, "A=" + std::string(100'000, 'x'));
  CHECK_THROWS_WITH(host.runner().exec(sandbox, huge), Contains("too long"));
  huge.env.assign(30, "A=" + std::string(130'000, 'x'));
  for (int i = 0; i < 30; ++i) huge.env[static_cast<std::size_t>(i)][0] = static_cast<char>('A' + i);
  const auto outcome = host.run(sandbox, huge);
  CHECK(outcome.result.cause == Cause::CannotExecute);
  CHECK_THAT(outcome.result.detail, Contains("E2BIG"));
}

}  // namespace
}  // namespace dsec
