#include <fcntl.h>
#include <signal.h>
#include <sys/swap.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "runners/container/state_file.h"
#include "tests/support/container_fixture.h"
#include "tests/support/skip.h"

namespace dsec {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using engine::SandboxState;
using std::chrono::steady_clock;
using test::ContainerFixture;
using test::eventually;
using test::shell;

/// A sandbox in which something counts up in /count, ten times a second at least.
struct Counting : ContainerFixture {
  std::filesystem::path sandbox;
  std::unique_ptr<engine::ExecStream> stream;

  explicit Counting(const SandboxSpec& spec = {}) : sandbox(start(spec)) {
    stream =
        runner().exec(sandbox, shell("n=0; echo ready; while :; do n=$((n+1)); echo $n > /count; sleep 0.01; done"));
    REQUIRE(stream->next(10s)->data == "ready\n");
    REQUIRE(eventually([&] { return count() > 0; }));
  }
  // Read from outside, so that nobody is woken.
  int count() const {
    try {
      return std::atoi(read_file(sandbox / "upper/count", 64).c_str());
    } catch (const Error&) {
      return 0;
    }
  }
  bool stands_still() const {
    const int before = count();
    std::this_thread::sleep_for(120ms);
    return count() == before;
  }
};

TEST_CASE("a paused sandbox stands still and tells so until it is resumed", "[runner][pause]") {
  Counting host;
  host.runner().pause(host.sandbox);
  CHECK(host.runner().status(host.sandbox).state == SandboxState::Paused);
  CHECK(host.stands_still());
  // Looking does not wake it; to pause it again is no error.
  CHECK(host.runner().commands(host.sandbox).size() == 1);
  CHECK_FALSE(host.runner().wait(host.sandbox, 10ms));
  host.runner().stats(host.sandbox);
  host.runner().pause(host.sandbox);
  CHECK(host.runner().status(host.sandbox).state == SandboxState::Paused);
  CHECK(host.stands_still());
  host.runner().resume(host.sandbox);
  CHECK(host.runner().status(host.sandbox).state == SandboxState::Running);
  CHECK_FALSE(host.stands_still());
  host.runner().resume(host.sandbox);
}

TEST_CASE("an operation on a paused sandbox resumes it by itself", "[runner][pause]") {
  Counting host;
  host.runner().pause(host.sandbox);
  SECTION("a command") { CHECK(host.run(host.sandbox, "echo here").out == "here\n"); }
  SECTION("a client that attaches again") { host.runner().attach(host.sandbox, host.stream->exec_id()); }
  SECTION("a signal to a command that runs") {
    host.stream->signal(SIGTERM);
    CHECK(ContainerFixture::finish(*host.stream).result.signal == SIGTERM);
  }
  SECTION("a stop that leaves time") {
    host.runner().stop(host.sandbox, 5s);
    CHECK(host.runner().status(host.sandbox).state == SandboxState::Stopped);
    return;
  }
  CHECK(eventually([&] { return host.runner().status(host.sandbox).state == SandboxState::Running; }));
}

TEST_CASE("a paused sandbox is stopped, outlives its time and loses its keeper like any other", "[runner][pause]") {
  SECTION("a stop without time") {
    Counting host;
    host.runner().pause(host.sandbox);
    host.runner().stop(host.sandbox, 0s);
    CHECK(host.runner().status(host.sandbox).state == SandboxState::Stopped);
    CHECK(host.processes().empty());
    CHECK(host.cgroups().empty());
  }
  SECTION("its lifetime goes on") {
    Counting host(SandboxSpec{.lifetime = 1s});
    host.runner().pause(host.sandbox);
    CHECK(host.runner().wait(host.sandbox, 10s));
    CHECK(host.runner().status(host.sandbox).reason == "its lifetime ended");
    CHECK(host.processes().empty());
  }
  SECTION("the timeout of a command goes on, and leaves it paused") {
    ContainerFixture host;
    const auto sandbox = host.start();
    ExecSpec slow = shell("echo ready; sleep 100");
    slow.timeout = 500ms;
    const auto stream = host.runner().exec(sandbox, slow);
    REQUIRE(stream->next(10s)->data == "ready\n");
    host.runner().pause(sandbox);
    CHECK(ContainerFixture::finish(*stream).result.cause == ExecResult::Cause::TimedOut);
    CHECK(host.runner().status(sandbox).state == SandboxState::Paused);
  }
  SECTION("its keeper is killed") {
    Counting host;
    host.runner().pause(host.sandbox);
    REQUIRE(::kill(runners::living_keeper(host.sandbox), SIGKILL) == 0);
    CHECK(eventually([&] { return host.processes().empty(); }));
    CHECK(host.runner().status(host.sandbox).state == SandboxState::Orphaned);
    host.runner().reclaim(host.sandbox);
    CHECK(host.cgroups().empty());
  }
}

TEST_CASE("what is idle pauses itself, again and again, and ends when it is idle for long enough", "[runner][pause]") {
  ContainerFixture host;
  const auto sandbox = host.start(SandboxSpec{.idle = 1500ms, .idle_pause = 200ms});
  const auto paused = [&] { return host.runner().status(sandbox).state == SandboxState::Paused; };
  CHECK_FALSE(paused());
  CHECK(eventually(paused));
  // A command that runs is no idleness.
  CHECK(host.run(sandbox, "sleep 0.5; echo done").out == "done\n");
  CHECK(eventually(paused));
  CHECK(host.runner().wait(sandbox, 10s));
  CHECK(host.runner().status(sandbox).reason == "it was idle");
}

TEST_CASE("a hold ends with whoever holds, and leaves a pause as it was", "[runner][pause]") {
  Counting host;
  {
    const auto first = host.runner().hold_still(host.sandbox);
    const auto second = host.runner().hold_still(host.sandbox);
    CHECK(host.stands_still());
    CHECK(host.runner().status(host.sandbox).state == SandboxState::Running);
  }
  CHECK(eventually([&] { return !host.stands_still(); }));
  SECTION("a command that comes meanwhile waits") {
    auto held = host.runner().hold_still(host.sandbox);
    const auto stream = host.runner().exec(host.sandbox, shell("echo here"));
    CHECK_FALSE(stream->next(150ms));
    held.reset();
    CHECK(ContainerFixture::finish(*stream).out == "here\n");
  }
  SECTION("one that is paused stays so") {
    host.runner().pause(host.sandbox);
    host.runner().hold_still(host.sandbox).reset();
    std::this_thread::sleep_for(50ms);
    CHECK(host.runner().status(host.sandbox).state == SandboxState::Paused);
    CHECK(host.stands_still());
  }
  SECTION("a pause that comes meanwhile stays") {
    auto held = host.runner().hold_still(host.sandbox);
    host.runner().pause(host.sandbox);
    held.reset();
    CHECK(host.stands_still());
    host.runner().resume(host.sandbox);
    CHECK(eventually([&] { return !host.stands_still(); }));
  }
}

TEST_CASE("a pause gives back the page cache that the sandbox is charged for", "[runner][pause]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.limits.memory = 256ull << 20;
  const auto sandbox = host.start(spec);
  REQUIRE(host.run(sandbox, "dd if=/dev/zero of=/big bs=1M count=48 && sync").result.exit_code == 0);
  host.runner().pause(sandbox);
  const engine::SandboxStats stats = host.runner().stats(sandbox);
  REQUIRE(stats.memory_before_pause);
  CAPTURE(*stats.memory_before_pause, stats.memory_bytes);
  CHECK(*stats.memory_before_pause > 40u << 20);
  CHECK(stats.memory_bytes < 20u << 20);
  CHECK(host.run(sandbox, "wc -c < /big").out == "50331648\n");
  CHECK_FALSE(host.runner().stats(sandbox).memory_before_pause);
}

/// Swap on a disk of this machine, for as long as it exists.
class SwapFile {
 public:
  SwapFile(std::filesystem::path file, std::size_t megabytes) : file_(std::move(file)) {
    write_all(open_file(file_, O_WRONLY | O_CREAT | O_EXCL, 0600).get(), std::string(megabytes << 20, '\0'));
    const CommandResult made = run_command({.argv = {"mkswap", file_.native()}});
    INFO(made.err);
    REQUIRE(made.status.ok());
    REQUIRE(::swapon(file_.c_str(), 0) == 0);
  }
  ~SwapFile() { CHECK(::swapoff(file_.c_str()) == 0); }
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

 private:
  const std::filesystem::path file_;
};

TEST_CASE("with swap a pause gives back all memory, and the limit is what it was afterwards", "[runner][pause]") {
  const char* lane = std::getenv("DSEC_LANE");
  if (!lane || std::string(lane) != "guest") BELONGS_TO_LANE("guest", "the swap of this host is not the tests' affair");
  ContainerFixture host;
  const SwapFile swap(host.work() / "swap", 192);
  SandboxSpec spec;
  spec.limits.memory = 128ull << 20;
  const auto sandbox = host.start(spec);
  const auto stream = host.runner().exec(
      sandbox, shell("x=$(head -c 20000000 /dev/zero | tr '\\0' x); dd if=/dev/zero of=/dev/shm/kept bs=1M count=40 "
                     "2>/dev/null; echo ready; until [ -e /go ]; do sleep 0.1; done; echo ${#x}"));
  REQUIRE(stream->next(60s)->data == "ready\n");
  // Of the groups that have a limit of memory.
  const auto swap_limits = [&] {
    std::vector<std::string> found;
    for (const std::filesystem::path group : host.cgroups())
      if (std::filesystem::exists(group / "memory.max") && read_file(group / "memory.max", 64) != "max\n")
        found.push_back(read_file(group / "memory.swap.max", 64));
    return found;
  };
  REQUIRE(swap_limits() == std::vector<std::string>{"0\n"});
  for (const std::uint64_t before : {56u << 20, 0u}) {
    host.runner().pause(sandbox);
    const engine::SandboxStats stats = host.runner().stats(sandbox);
    CAPTURE(*stats.memory_before_pause, stats.memory_bytes);
    CHECK(*stats.memory_before_pause > before);
    CHECK(stats.memory_bytes < 16u << 20);
    host.runner().resume(sandbox);
  }
  CHECK(host.run(sandbox, "cmp -n 41943040 /dev/shm/kept /dev/zero && wc -c < /dev/shm/kept && touch /go").out ==
        "41943040\n");
  CHECK(ContainerFixture::finish(*stream).out == "20000000\n");
  CHECK(swap_limits() == std::vector<std::string>{"0\n"});
  // Neither does swap make room beyond the limit.
  const auto greedy = host.run(sandbox, "tail /dev/zero");
  CHECK(greedy.result.cause == ExecResult::Cause::OutOfMemory);
}

TEST_CASE("an idle sandbox resumes within 3 ms", "[runner][pause]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  std::vector<double> took;
  for (int i = 0; i < 21; ++i) {
    host.runner().pause(sandbox);
    const auto before = steady_clock::now();
    host.runner().resume(sandbox);
    took.push_back(std::chrono::duration<double, std::milli>(steady_clock::now() - before).count());
  }
  // The lower quartile: other tests share the processors.
  std::nth_element(took.begin(), took.begin() + 5, took.end());
  CAPTURE(took);
  // The processor of the guest may be emulated, which takes ten times as long.
  const char* lane = std::getenv("DSEC_LANE");
  CHECK(took[5] <= (lane && std::string(lane) == "guest" ? 30.0 : 3.0));
}

TEST_CASE("what has ended cannot be paused", "[runner][pause]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  host.runner().stop(sandbox, 0s);
  CHECK_THROWS_WITH(host.runner().pause(sandbox), Contains("the sandbox is stopped"));
  CHECK_THROWS_WITH(host.runner().resume(sandbox), Contains("the sandbox is stopped"));
  host.runner().hold_still(sandbox);
}

}  // namespace
}  // namespace dsec
