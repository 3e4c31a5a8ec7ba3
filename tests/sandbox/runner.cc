#include <sys/stat.h>

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

}  // namespace
}  // namespace dsec
