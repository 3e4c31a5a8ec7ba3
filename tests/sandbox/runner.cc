#include <signal.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/base/error.h"
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

}  // namespace
}  // namespace dsec
