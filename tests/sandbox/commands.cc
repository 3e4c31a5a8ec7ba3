#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/support/container_fixture.h"

namespace dsec {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using engine::ExecEvent;
using test::command;
using test::ContainerFixture;
using test::eventually;
using test::shell;
using Cause = ExecResult::Cause;

TEST_CASE("what a command reads is what its caller writes", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();

  SECTION("without input it is at its end") { CHECK(host.run(sandbox, "cat; echo done").out == "done\n"); }

  SECTION("a megabyte goes in and comes back, though nobody reads while we write") {
    std::string input;
    while (input.size() < 1 << 20) input += "line " + std::to_string(input.size()) + "\n";
    ExecSpec spec = shell("cat");
    spec.open_stdin = true;
    auto stream = host.runner().exec(sandbox, spec);
    std::thread writer([&] {
      stream->write_stdin(input);
      stream->close_stdin();
    });
    std::string out;
    while (const auto event = stream->next(30s)) {
      if (event->kind == ExecEvent::Kind::Exited) break;
      out += event->data;
    }
    writer.join();
    CHECK(out == input);
  }

  SECTION("its own /dev/stdout and /dev/stderr can be opened by name, by any user") {
    ExecSpec spec = shell("echo a > /dev/stdout; echo b > /dev/stderr");
    spec.user = "ann";
    const auto outcome = host.run(sandbox, spec);
    CHECK(outcome.out == "a\n");
    CHECK(outcome.err == "b\n");
  }
}

TEST_CASE("exit codes are the command's, and what cannot run says why", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();

  SECTION("a signal") {
    const auto outcome = host.run(sandbox, "kill -TERM $$");
    CHECK(outcome.result.cause == Cause::Signalled);
    CHECK(outcome.result.signal == 15);
    CHECK(outcome.result.shell_code() == 143);
  }
  SECTION("a program that is not there") {
    const auto outcome = host.run(sandbox, command({"no-such-program"}));
    CHECK(outcome.result.cause == Cause::NotFound);
    CHECK(outcome.result.shell_code() == 127);
    CHECK(outcome.result.detail == "execute 'no-such-program': No such file or directory (ENOENT)");
  }
  SECTION("a file that is no program") {
    const auto outcome = host.run(sandbox, command({"/etc/passwd"}));
    CHECK(outcome.result.cause == Cause::CannotExecute);
    CHECK(outcome.result.shell_code() == 126);
    CHECK_THAT(outcome.result.detail, Contains("Permission denied (EACCES)"));
  }
  SECTION("a directory in PATH does not hide a program that comes later") {
    host.run(sandbox, "mkdir -p /tmp/bin/echo");
    ExecSpec spec = command({"echo", "here"});
    spec.env = {"PATH=/tmp/bin:/bin"};
    CHECK(host.run(sandbox, spec).out == "here\n");
  }
  SECTION("a working directory that is not there") {
    ExecSpec spec = shell("pwd");
    spec.workdir = "/nowhere";
    const auto outcome = host.run(sandbox, spec);
    CHECK(outcome.result.cause == Cause::CannotExecute);
    CHECK(outcome.result.detail == "enter the working directory '/nowhere': No such file or directory (ENOENT)");
  }
  SECTION("a user that is not there") {
    ExecSpec spec = shell("id");
    spec.user = "bob";
    const auto outcome = host.run(sandbox, spec);
    CHECK(outcome.result.cause == Cause::CannotExecute);
    CHECK_THAT(outcome.result.detail, Contains("find user 'bob'"));
  }
}

TEST_CASE("users are those of the sandbox's own files", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  const auto id = [&](const std::string& user, const char* script = "id -u; id -g; id -G; echo $HOME") {
    ExecSpec spec = shell(script);
    spec.user = user;
    return host.run(sandbox, spec).out;
  };
  CHECK(id("") == "0\n0\n0 44\n/root\n");
  CHECK(id("ann") == "1000\n1000\n1000 29 44\n/home/ann\n");
  CHECK(id("1000") == "1000\n1000\n1000 29 44\n/home/ann\n");
  CHECK(id("ann:log") == "1000\n50\n50\n/home/ann\n");
  CHECK(id("1234:77") == "1234\n77\n77\n/\n");
  // Others than root have no capability, also none that an exec could give.
  CHECK(id("ann", "grep -c 'Cap...:.*[1-9a-f]' /proc/self/status; grep CapBnd /proc/self/status | tr -d '\\t'") ==
        "1\nCapBnd:00000000800405fb\n");

  SECTION("a FIFO, a directory, a link out of the root or a huge file in their place does no harm") {
    for (const char* script :
         {"rm /etc/passwd; mkfifo /etc/passwd", "rm /etc/passwd; mkdir /etc/passwd",
          "rmdir /etc/passwd; ln -s ../../../../../../../etc/shadow /etc/passwd",
          "rm /etc/passwd; ln -s /proc/1/environ /etc/passwd", "rm /etc/passwd; truncate -s 1T /etc/passwd"}) {
      host.run(sandbox, script);
      // Not with id, which would read the files itself.
      ExecSpec spec = command({"/bin/grep", "Uid", "/proc/self/status"});
      spec.user = "0";
      CHECK(host.run(sandbox, spec).out == "Uid:\t0\t0\t0\t0\n");
      spec.user = "ann";
      CHECK(host.run(sandbox, spec).result.cause == Cause::CannotExecute);
    }
  }
}

TEST_CASE("the environment is merged and has its defaults", "[runner][exec]") {
  ContainerFixture host;
  SandboxSpec sandbox_spec;
  sandbox_spec.config.env = {"A=image", "B=image", "TZ=Europe/Berlin"};
  sandbox_spec.config.workdir = "/srv/dir with space";
  sandbox_spec.config.user = "ann";
  sandbox_spec.hostname = "box";
  const auto sandbox = host.start(sandbox_spec);
  ExecSpec spec = shell("echo $A $B $C $TZ $PATH; hostname; cat /etc/hostname; pwd; id -un; echo ${TERM-none}");
  spec.env = {"B=own", "C=own"};
  CHECK(host.run(sandbox, spec).out ==
        "image own own Europe/Berlin /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "box\nbox\n/srv/dir with space\nann\nnone\n");
}

TEST_CASE("a timeout kills the whole tree and gives the partial output", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  host.run(sandbox, "sleep 1000 & echo");  // one of an earlier command, which must stay
  ExecSpec spec = shell("echo before; (setsid sh -c 'trap \"\" TERM HUP; sleep 1001' &) ; sleep 1002");
  spec.timeout = 300ms;
  const auto outcome = host.run(sandbox, spec);
  CHECK(outcome.out == "before\n");
  CHECK(outcome.result.cause == Cause::TimedOut);
  CHECK(outcome.result.shell_code() == 124);
  CHECK(outcome.result.duration >= 300ms);
  CHECK(outcome.result.duration < 5s);
  const auto sleeping = host.run(sandbox, "ps | grep -o 'sleep 100[0-9]$' | sort -u");
  CHECK(sleeping.out == "sleep 1000\n");
}

TEST_CASE("a terminal is the command's controlling terminal, with a size", "[runner][tty]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  ExecSpec spec = shell(
      "tty; stty size; read line; echo got $line; stty size; ps -o tty,args | grep -c 'pts\\|136,'; "
      "trap 'exit 7' INT; echo $TERM; sleep 100");
  spec.tty = true;
  spec.rows = 30;
  spec.columns = 100;
  auto stream = host.runner().exec(sandbox, spec);
  std::string out;
  const auto read_until = [&](const std::string& wanted) {
    while (out.find(wanted) == std::string::npos) {
      const auto event = stream->next(10s);
      if (!event || event->kind == ExecEvent::Kind::Exited) return false;
      out += event->data;
    }
    return true;
  };
  CHECK(read_until("30 100"));
  stream->resize(40, 120);
  stream->write_stdin("hello\n");
  CHECK(read_until("got hello"));
  CHECK(read_until("40 120"));
  CHECK(read_until("xterm"));
  CHECK_THAT(out, Contains("/dev/pts/0"));
  // ^C at the terminal reaches what runs in its foreground. Again and again, since a shell that just forks loses it.
  for (int tries = 0;; ++tries) {
    REQUIRE(tries < 50);
    stream->write_stdin("\x03");
    std::this_thread::sleep_for(100ms);
    const auto event = stream->next(200ms);
    if (!event || event->kind != ExecEvent::Kind::Exited) continue;
    CHECK(event->result.exit_code == 7);
    break;
  }
  CHECK(host.run(sandbox, "ls /dev/pts").out == "ptmx\n");
}

TEST_CASE("programs inside can make terminals of their own", "[runner][tty]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  CHECK(host.run(sandbox, "exec 3<>/dev/ptmx; ls /dev/pts").out == "0\nptmx\n");
}

TEST_CASE("a terminal's signals reach the command's group, those with a meaning of their own the command alone",
          "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  const auto send = [&](const std::string& name, int number) {
    // A child that the signal reaches says so before the command does.
    auto stream = host.runner().exec(sandbox, shell("trap 'sleep 0.3; echo itself; kill -KILL $!; exit 3' " + name +
                                                    "; sh -c 'trap \"echo child; exit\" " + name +
                                                    "; echo ready; while sleep 0.05; do :; done' & wait"));
    REQUIRE(stream->next(10s)->data == "ready\n");
    stream->signal(number);
    const auto outcome = ContainerFixture::finish(*stream);
    CHECK(outcome.result.exit_code == 3);
    return outcome.out;
  };
  CHECK(send("HUP", SIGHUP) == "child\nitself\n");
  CHECK(send("TERM", SIGTERM) == "itself\n");
  CHECK(send("USR1", SIGUSR1) == "itself\n");
  CHECK(send("USR2", SIGUSR2) == "itself\n");
}

TEST_CASE("a signal that comes before the command runs is not lost", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  for (int round = 0; round < 20; ++round) {
    const auto stream = host.runner().exec(sandbox, command({"/bin/sleep", "1000"}));
    stream->signal(SIGINT);
    CHECK(ContainerFixture::finish(*stream).result.signal == SIGINT);
  }
}

TEST_CASE("a command outlives its client and can be attached again", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  std::string id;
  {
    auto stream =
        host.runner().exec(sandbox, shell("echo one; echo two >&2; until [ -e /tmp/go ]; do sleep 0.02; done; "
                                          "echo three"));
    id = stream->exec_id();
    REQUIRE(stream->next(10s)->data == "one\n");
  }
  CHECK(host.runner().commands(sandbox).back().running);
  auto again = host.runner().attach(sandbox, id);
  REQUIRE(again->next(10s)->data == "one\n");
  REQUIRE(again->next(10s)->data == "two\n");
  host.run(sandbox, "touch /tmp/go");
  const auto outcome = ContainerFixture::finish(*again);
  CHECK(outcome.out == "three\n");
  CHECK(outcome.result.stdout_bytes == 10);
  // What is missed can be had later, too, also only from where a reader was.
  const auto ended =
      ContainerFixture::finish(*host.runner().attach(sandbox, id, {.stdout_bytes = 4, .stderr_bytes = 1}));
  CHECK(ended.out == "three\n");
  CHECK(ended.err == "wo\n");
  CHECK(ended.result.stdout_bytes == 10);
  CHECK_THROWS_WITH(host.runner().attach(sandbox, "77"), Contains("there is no command '77'"));
  const auto commands = host.runner().commands(sandbox);
  REQUIRE(commands.size() == 2);
  CHECK(commands[0].argv[0] == "/bin/sh");
  CHECK(commands[0].result->exit_code == 0);
}

TEST_CASE("a process that a command leaves behind stays, and its output is kept", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  const auto outcome = host.run(sandbox, "(sleep 2; echo late; sleep 100) & echo early");
  CHECK(outcome.out == "early\n");
  CHECK(outcome.result.duration < 2s);
  std::string kept;
  CHECK(eventually([&] {
    kept.clear();
    host.runner().logs(sandbox, {.exec_id = "1"}, [&](ExecEvent::Kind, auto, std::string_view data) { kept += data; });
    return kept == "early\nlate\n";
  }));
  CHECK(host.run(sandbox, "ps | grep -c '[s]leep 100'").out == "1\n");
}

TEST_CASE("a reader that does not read holds up its own command only", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  auto slow = host.runner().exec(sandbox, shell("head -c 50000000 /dev/zero; echo end >&2"));
  std::this_thread::sleep_for(200ms);
  const auto start = std::chrono::steady_clock::now();
  CHECK(host.run(sandbox, "echo quick").out == "quick\n");
  CHECK(std::chrono::steady_clock::now() - start < 2s);
  CHECK(host.runner().commands(sandbox)[0].running);
  const auto outcome = ContainerFixture::finish(*slow);
  CHECK(outcome.out.size() == 50000000);
  CHECK(outcome.err == "end\n");
}

TEST_CASE("who writes without end, even after its command's end, holds up nobody", "[runner][exec]") {
  ContainerFixture host;
  SandboxSpec settings;
  settings.limits.output = 1 << 20;
  const auto sandbox = host.start(settings);
  CHECK(host.run(sandbox, "yes & sleep 0.2").result.exit_code == 0);
  ExecSpec endless = shell("yes");
  endless.timeout = 1s;
  auto stream = host.runner().exec(sandbox, endless);
  const auto start = std::chrono::steady_clock::now();
  CHECK(host.run(sandbox, "echo quick").out == "quick\n");
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  CHECK(ContainerFixture::finish(*stream).result.cause == Cause::TimedOut);
  host.runner().stop(sandbox, 0ms);
}

TEST_CASE("output beyond the limit keeps head and tail, and tells what is missing", "[runner][exec]") {
  ContainerFixture host;
  SandboxSpec spec;
  spec.limits.output = 100'000;
  const auto sandbox = host.start(spec);
  const auto outcome = host.run(sandbox, "seq 1 200000; echo problem >&2");
  const std::uint64_t written = outcome.result.stdout_bytes;
  CHECK(written == outcome.out.size());  // who reads live gets all
  CHECK(outcome.result.stdout_dropped > written - 100'000);
  CHECK(outcome.result.stderr_dropped == 0);
  std::string kept, errors;
  host.runner().logs(sandbox, {.exec_id = "1"}, [&](ExecEvent::Kind kind, auto, std::string_view data) {
    (kind == ExecEvent::Kind::Stdout ? kept : errors) += data;
  });
  const std::string marker = "\n[dsec: " + std::to_string(outcome.result.stdout_dropped) + " bytes dropped here]\n";
  CHECK(kept.starts_with("1\n2\n3\n"));
  CHECK(kept.ends_with("199999\n200000\n"));
  REQUIRE_THAT(kept, Contains(marker));
  CHECK(kept.size() - marker.size() == written - outcome.result.stdout_dropped);
  CHECK(kept.size() > 70'000);
  CHECK(errors == "problem\n");
  std::uintmax_t on_disk = 0;
  for (const auto& entry : std::filesystem::directory_iterator(sandbox / "spool")) on_disk += entry.file_size();
  CHECK(on_disk <= 200'000);

  std::string last;
  host.runner().logs(sandbox, {.tail = 2, .exec_id = "1"},
                     [&](ExecEvent::Kind, auto, std::string_view data) { last += data; });
  CHECK(last == "200000\nproblem\n");
}

TEST_CASE("many commands at once keep their output apart", "[runner][exec]") {
  ContainerFixture host;
  const auto sandbox = host.start();
  std::vector<std::unique_ptr<engine::ExecStream>> streams;
  for (int i = 0; i < 40; ++i)
    streams.push_back(host.runner().exec(sandbox, shell("echo " + std::to_string(i) + "; exit " + std::to_string(i))));
  for (int i = 0; i < 40; ++i) {
    const auto outcome = ContainerFixture::finish(*streams[static_cast<std::size_t>(i)]);
    CHECK(outcome.out == std::to_string(i) + "\n");
    CHECK(outcome.result.exit_code == i);
  }
}

}  // namespace
}  // namespace dsec
