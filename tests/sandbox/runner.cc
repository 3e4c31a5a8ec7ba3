#include <signal.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/base/error.h"
#include "runners/container/container_runner.h"
#include "tests/support/container_fixture.h"

namespace dsec {
namespace {

using namespace std::chrono_literals;
using engine::SandboxState;
using test::command;
using test::ContainerFixture;
using test::eventually;
using test::shell;
using Cause = ExecResult::Cause;
namespace fs = std::filesystem;

TEST_CASE("a sandbox starts, runs a command, stops, and leaves nothing", "[runner]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  CHECK(host.runner().status(sandbox).state == SandboxState::Running);

  const auto outcome = host.run(sandbox, "echo out; echo err >&2; exit 7");
  CHECK(outcome.out == "out\n");
  CHECK(outcome.err == "err\n");
  CHECK(outcome.result.detail.empty());
  INFO(outcome.result.detail);
  CHECK(outcome.result.cause == Cause::Exited);
  CHECK(outcome.result.exit_code == 7);
  CHECK(outcome.result.stdout_bytes == 4);

  host.runner().stop(sandbox, 0ms);
  const engine::RunnerStatus status = host.runner().status(sandbox);
  CHECK(status.state == SandboxState::Stopped);
  CHECK(status.reason == "it was stopped");
  CHECK(host.cgroups().empty());
  host.runner().reclaim(sandbox);
  CHECK(host.processes().empty());
  for (const auto& entry : std::filesystem::directory_iterator(sandbox)) CHECK(entry.path().filename() == "lease.json");
}

// Pids of those whose arguments name no sandbox yet.
std::vector<pid_t> waiting_keepers(const ContainerFixture& host) {
  const std::string nobody = (host.home().sandboxes() / std::string(22, '-')).native() + '\0';
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    try {
      if (read_file(entry.path() / "cmdline").ends_with(nobody)) found.push_back(std::stoi(name));
    } catch (const Error&) {
      // It has just ended.
    }
  }
  return found;
}

TEST_CASE("who makes one sandbox after the other has one keeper waiting, and never depends on it", "[runner]") {
  ContainerFixture host;
  const auto works = [&] {
    const auto sandbox = host.start();
    CHECK(host.run(sandbox, "echo here").out == "here\n");
    const pid_t keeper = host.runner().status(sandbox).keeper_pid;
    CHECK(read_file("/proc/" + std::to_string(keeper) + "/cmdline").ends_with(sandbox.native() + '\0'));
    return keeper;
  };
  works();
  CHECK(waiting_keepers(host).empty());
  works();
  const auto first = waiting_keepers(host);
  REQUIRE(first.size() == 1);
  CHECK(works() == first.front());
  const auto second = waiting_keepers(host);
  REQUIRE(second.size() == 1);
  REQUIRE(::kill(second.front(), SIGKILL) == 0);
  CHECK(eventually([&] { return waiting_keepers(host).empty(); }));
  works();
  REQUIRE(waiting_keepers(host).size() == 1);
  host.runner().release_shared();
  CHECK(waiting_keepers(host).empty());
}

TEST_CASE("a keeper whose sandbox is removed by its maker keeps the next one, with nothing left of the last",
          "[runner]") {
  ContainerFixture host;
  const auto start = [&] { return host.start(); };
  const auto remove = [&](const fs::path& sandbox) {
    host.runner().stop(sandbox, 0ms);
    host.runner().reclaim(sandbox);
  };
  const auto keeper_of = [&](const fs::path& sandbox) { return host.runner().status(sandbox).keeper_pid; };
  // It takes two to tell that there will be more.
  remove(start());
  remove(start());
  auto sandbox = start();
  const pid_t keeper = keeper_of(sandbox);
  const fs::path process = "/proc/" + std::to_string(keeper);
  CHECK(host.run(sandbox, "echo secret > /dev/shm/x; sleep 1000 & echo here").out == "here\n");
  for (int round = 0; round < 3; ++round) {
    remove(sandbox);
    CHECK(host.cgroups().empty());
    CHECK(waiting_keepers(host) == std::vector{keeper});
    std::size_t open = 0;
    for (const auto& fd : fs::directory_iterator(process / "fd")) open += !fd.path().empty();
    CHECK(open == 4);
    CHECK(read_file(process / "oom_score_adj") == "0\n");
    CHECK(fs::read_symlink(process / "cwd") == "/");
    sandbox = start();
    CHECK(keeper_of(sandbox) == keeper);
    CHECK(read_file(process / "cmdline").ends_with(sandbox.native() + '\0'));
    CHECK(host.run(sandbox, "ls /dev/shm").out.empty());
  }
  // Whom somebody else ends goes with its sandbox.
  const auto other = runners::make_container_runner(host.home(), {});
  other->stop(sandbox, 0ms);
  CHECK(eventually([&] {
    try {
      return read_file(process / "cmdline").empty();
    } catch (const Error&) {
      return true;
    }
  }));
  host.runner().reclaim(sandbox);
  CHECK(host.run(start(), "echo here").out == "here\n");
}

TEST_CASE("a keeper that waits for another sandbox ends with its maker's connection", "[runner]") {
  ContainerFixture host;
  for (int round = 0; round < 3; ++round) {
    const auto sandbox = host.start();
    host.runner().stop(sandbox, 0ms);
    host.runner().reclaim(sandbox);
  }
  REQUIRE(waiting_keepers(host).size() == 1);
  host.runner().release_shared();
  CHECK(eventually([&] { return waiting_keepers(host).empty(); }));
}

}  // namespace
}  // namespace dsec
