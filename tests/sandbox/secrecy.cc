#include <sys/stat.h>

#include <cstdlib>

#include "core/base/error.h"
#include "tests/support/container_fixture.h"

namespace dsec {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::command;
using test::ContainerFixture;
using test::shell;
using Cause = ExecResult::Cause;

void add_probe(const ContainerFixture& host) {
  const auto target = host.tree() / "bin/watch-probe";
  std::filesystem::copy_file(std::filesystem::read_symlink("/proc/self/exe").parent_path() / "probe_watch", target);
}

// Lines of a probe that was told to end.
std::string end_probe(ContainerFixture& host, const std::filesystem::path& sandbox, engine::ExecStream& probe) {
  host.run(sandbox, "touch /tmp/enough");
  return ContainerFixture::finish(probe).out;
}

void watch_execs(UserNamespace userns) {
  ContainerFixture host;
  add_probe(host);
  SandboxSpec spec;
  spec.userns = userns;
  const auto sandbox = host.start(spec);
  const auto probe = host.runner().exec(sandbox, command({"/bin/watch-probe", "watch"}));
  REQUIRE(probe->next(10s)->data == "ready\n");
  const int rounds = std::getenv("DSEC_TEST_LONG") ? 10'000 : 1'000;
  for (int round = 0; round < rounds; ++round) {
    const auto outcome = host.run(sandbox, command({"/bin/true"}));
    // The probe may have the sandbox's own program open for writing, when it was just too late for ours.
    if (outcome.result.detail.find("ETXTBSY") != std::string::npos) continue;
    if (outcome.result.cause != Cause::Exited || outcome.result.exit_code != 0) FAIL(outcome.result.detail);
  }
  const std::string said = end_probe(host, sandbox, *probe);
  CHECK_THAT(said, !Contains("LEAK"));
  // It did meet some on their way, so its tries were real.
  REQUIRE_THAT(said, Contains("met "));
  CHECK(std::stol(said.substr(said.find("met ") + 4)) > 0);
}

TEST_CASE("nothing inside reads or gets hold of what brings commands in", "[runner][secrecy]") {
  watch_execs(UserNamespace::Auto);
}

TEST_CASE("nor does root of a sandbox that shares the host's user ids", "[runner][secrecy]") {
  watch_execs(UserNamespace::Host);
}

TEST_CASE("who stops commands on their way in stops nobody else", "[runner][secrecy]") {
  ContainerFixture host;
  add_probe(host);
  const auto sandbox = host.start();
  const auto probe = host.runner().exec(sandbox, command({"/bin/watch-probe", "stop"}));
  REQUIRE(probe->next(10s)->data == "ready\n");
  int stopped = 0;
  for (int round = 0; round < 150; ++round) {
    ExecSpec spec = command({"/bin/true"});
    spec.timeout = 300ms;
    const auto before = std::chrono::steady_clock::now();
    const auto outcome = host.run(sandbox, spec);
    CHECK(std::chrono::steady_clock::now() - before < 8s);
    if (outcome.result.cause == Cause::TimedOut) {
      ++stopped;
    } else {
      CHECK(outcome.result.cause == Cause::Exited);
    }
    // The keeper answers all the same.
    if (round % 50 == 0) CHECK(host.runner().commands(sandbox).size() >= 1);
  }
  WARN("stopped on their way in: " << stopped << " of 150");
  host.runner().stop(sandbox, 0ms);
  CHECK(host.runner().status(sandbox).state == engine::SandboxState::Stopped);
  CHECK(host.cgroups().empty());
}

TEST_CASE("who traces commands and keeps their end holds up no timeout", "[runner][secrecy]") {
  ContainerFixture host;
  add_probe(host);
  const auto sandbox = host.start();
  const auto probe = host.runner().exec(sandbox, command({"/bin/watch-probe", "hold"}));
  REQUIRE(probe->next(10s)->data == "ready\n");
  ExecSpec spec = command({"/bin/sleep", "0.5"});
  spec.timeout = 1s;
  const auto before = std::chrono::steady_clock::now();
  const auto outcome = host.run(sandbox, spec);
  CHECK(outcome.result.cause == Cause::TimedOut);
  CHECK(std::chrono::steady_clock::now() - before < 15s);
  host.runner().stop(sandbox, 0ms);
  CHECK(host.cgroups().empty());
}

TEST_CASE("the program that enters is of no use to whoever executes it inside", "[runner][secrecy]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  for (const std::vector<std::string>& argv :
       {std::vector<std::string>{"/proc/self/exe"}, {"/proc/self/exe", "init"}, {"/proc/self/exe", "keeper", "/"}}) {
    const auto outcome = host.run(sandbox, command(argv));
    CHECK(outcome.result.cause == Cause::Exited);
    CHECK(outcome.result.exit_code != 0);
  }
  // By name of a script, which is how such a program was once overwritten.
  host.run(sandbox, "printf '#!/proc/self/exe\\n' > /bin/trap; chmod +x /bin/trap");
  CHECK(host.run(sandbox, command({"/bin/trap"})).result.shell_code() != 0);
  CHECK(host.run(sandbox, "echo fine").out == "fine\n");
}

}  // namespace
}  // namespace dsec
