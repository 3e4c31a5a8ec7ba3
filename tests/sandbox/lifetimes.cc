#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/engine/sandbox_id.h"
#include "runners/container/state_file.h"
#include "tests/support/container_fixture.h"

namespace dsec {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using engine::ExecEvent;
using engine::SandboxState;
using test::command;
using test::ContainerFixture;
using test::eventually;
using test::shell;
using Cause = ExecResult::Cause;

TEST_CASE("the end of the main command ends the sandbox", "[runner][lifetime]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  auto other = host.runner().exec(sandbox, shell("echo ready; sleep 100"));
  REQUIRE(other->next(10s)->data == "ready\n");
  ExecSpec main = shell("echo main; sleep 100 & exit 5");
  main.main = true;
  const auto outcome = host.run(sandbox, main);
  CHECK(outcome.result.exit_code == 5);
  CHECK(ContainerFixture::finish(*other).result.signal == SIGKILL);
  CHECK(host.runner().wait(sandbox, 10s));
  const auto status = host.runner().status(sandbox);
  CHECK(status.state == SandboxState::Stopped);
  CHECK(status.reason == "its command ended");
  CHECK(status.main_result->exit_code == 5);
  CHECK(status.command.at(2) == "echo main; sleep 100 & exit 5");
  CHECK(status.ended.time_since_epoch() > 0s);
  CHECK(host.processes().empty());
  CHECK(host.cgroups().empty());
  // Its output stays until it is removed.
  std::string kept;
  host.runner().logs(sandbox, {}, [&](ExecEvent::Kind, auto, std::string_view data) { kept += data; });
  CHECK(kept == "main\n");
  CHECK_THROWS_WITH(host.runner().exec(sandbox, command({"true"})), Contains("the sandbox is stopped"));
}

TEST_CASE("a sandbox ends by its lifetime and by idleness without anybody's help", "[runner][lifetime]") {
  ContainerFixture host;
  SandboxSpec spec;
  SECTION("lifetime, also while a command runs") {
    spec.lifetime = 400ms;
    const auto sandbox = host.start(spec);
    const auto outcome = host.run(sandbox, "sleep 100");
    CHECK(outcome.result.signal == SIGKILL);
    CHECK(host.runner().wait(sandbox, 10s));
    CHECK(host.runner().status(sandbox).reason == "its lifetime ended");
  }
  SECTION("idleness counts from the last command's end") {
    spec.idle = 300ms;
    const auto sandbox = host.start(spec);
    CHECK(host.run(sandbox, "sleep 0.6").result.exit_code == 0);
    CHECK(host.runner().status(sandbox).state == SandboxState::Running);
    CHECK(host.runner().wait(sandbox, 10s));
    CHECK(host.runner().status(sandbox).reason == "it was idle");
  }
  CHECK(host.processes().empty());
}

TEST_CASE("stop gives the main command time, and no more than that", "[runner][lifetime]") {
  ContainerFixture host;
  SandboxSpec spec;
  const auto start_main = [&](const std::filesystem::path& sandbox, const char* script) {
    ExecSpec main = shell(script);
    main.main = true;
    auto stream = host.runner().exec(sandbox, main);
    REQUIRE(stream->next(10s)->data == "ready\n");
    return stream;
  };
  SECTION("the stop signal of the image") {
    spec.config.stop_signal = "SIGUSR2";
    const auto sandbox = host.start(spec);
    auto stream = start_main(sandbox, "trap 'echo bye; exit 9' USR2; echo ready; sleep 100 & wait");
    host.runner().stop(sandbox, 10s);
    const auto outcome = ContainerFixture::finish(*stream);
    CHECK(outcome.out == "bye\n");
    CHECK(host.runner().status(sandbox).main_result->exit_code == 9);
    CHECK(host.runner().status(sandbox).reason == "it was stopped");
  }
  SECTION("one that does not listen is killed") {
    const auto sandbox = host.start(spec);
    auto stream = start_main(sandbox, "trap '' TERM; echo ready; while :; do sleep 0.1; done");
    const auto before = std::chrono::steady_clock::now();
    host.runner().stop(sandbox, 300ms);
    CHECK(std::chrono::steady_clock::now() - before >= 300ms);
    CHECK(ContainerFixture::finish(*stream).result.signal == SIGKILL);
  }
  SECTION("without a main command everybody gets it") {
    const auto sandbox = host.start(spec);
    auto stream = host.runner().exec(sandbox, shell("trap 'exit 4' TERM; sleep 100 & sleep 0.2; echo ready; wait"));
    REQUIRE(stream->next(10s)->data == "ready\n");
    const auto before = std::chrono::steady_clock::now();
    host.runner().stop(sandbox, 30s);
    CHECK(std::chrono::steady_clock::now() - before < 10s);
    CHECK(ContainerFixture::finish(*stream).result.exit_code == 4);
  }
  CHECK(host.processes().empty());
  CHECK(host.cgroups().empty());
}

TEST_CASE("a keeper that is killed takes its sandbox along, and reclaim removes the rest", "[runner][crash]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  auto stream = host.runner().exec(sandbox, shell("echo ready; setsid sleep 1000 & sleep 1000"));
  REQUIRE(stream->next(10s)->data == "ready\n");
  const pid_t keeper = runners::living_keeper(sandbox);
  REQUIRE(keeper > 0);
  REQUIRE(::kill(keeper, SIGKILL) == 0);
  CHECK(eventually([&] { return host.processes().empty(); }));
  CHECK(host.runner().status(sandbox).state == SandboxState::Orphaned);
  CHECK_THROWS(ContainerFixture::finish(*stream));
  CHECK_FALSE(host.cgroups().empty());
  host.runner().reclaim(sandbox);
  host.runner().reclaim(sandbox);
  CHECK(host.cgroups().empty());
  for (const auto& entry : std::filesystem::directory_iterator(sandbox)) CHECK(entry.path().filename() == "lease.json");
}

TEST_CASE("a PID 1 that is killed fails its sandbox, and the keeper cleans up", "[runner][crash]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  auto stream = host.runner().exec(sandbox, shell("echo ready; sleep 1000"));
  REQUIRE(stream->next(10s)->data == "ready\n");
  REQUIRE(::kill(runners::read_record(sandbox)->init_pid, SIGKILL) == 0);
  CHECK(ContainerFixture::finish(*stream).result.signal == SIGKILL);
  CHECK(host.runner().wait(sandbox, 10s));
  CHECK(host.runner().status(sandbox).state == SandboxState::Failed);
  CHECK(host.runner().status(sandbox).reason == "its PID 1 was killed");
  CHECK(host.processes().empty());
  CHECK(host.cgroups().empty());
}

TEST_CASE("a sandbox outlives the process that made it, and obeys another", "[runner][crash]") {
  ContainerFixture host;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const auto made = host.start();
      const std::string name = made.filename();
      if (::write(ends[1], name.data(), name.size()) < 0) ::_exit(2);
    } catch (const Error&) {
      ::_exit(1);
    }
    ::raise(SIGKILL);
  }
  char name[64] = {};
  REQUIRE(::read(ends[0], name, sizeof name) == 22);
  ::waitpid(child, nullptr, 0);
  const auto sandbox = host.home().sandboxes() / std::string(name, 22);
  CHECK(host.runner().status(sandbox).state == SandboxState::Running);
  CHECK(host.run(sandbox, "echo still here").out == "still here\n");
  host.runner().reclaim(sandbox);
  CHECK(eventually([&] { return host.processes().empty(); }));  // the host's init has to reap them
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("whoever dies while a sandbox is made leaves nothing that reclaim does not find", "[runner][crash]") {
  ContainerFixture host;
  const int rounds = std::getenv("DSEC_TEST_LONG") ? 300 : 30;
  for (int round = 0; round < rounds; ++round) {
    const std::string id = host.home().host_id() + engine::random_id(16);
    const auto directory = host.home().sandboxes() / id;
    make_directories(directory, 0700);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        host.start_at(directory, {});
      } catch (const Error&) {
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round * 9000 / rounds));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    // A keeper on its way sees that nobody waits for it any more, or is found by its lock. One that is about to execute
    // cannot be seen yet.
    host.runner().reclaim(directory);
    if (!eventually([&] { return host.processes().empty(); }, 2s)) host.runner().reclaim(directory);
    CHECK(eventually([&] { return host.processes().empty(); }, 2s));
    host.runner().reclaim(directory);
    CHECK(host.cgroups() == std::vector<std::string>{});
    remove_tree(directory);
  }
}

}  // namespace
}  // namespace dsec
