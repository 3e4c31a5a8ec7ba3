#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/terminal.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox;
};

// As telnet and virsh have it.
constexpr char kLeave = 0x1d;  // ^]

// What is typed goes to the console, until it is the key that leaves it.
class Typing {
 public:
  Typing(engine::ExecStream& stream, bool leaves) : stream_(stream), leaves_(leaves), stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) throw system_error("make an eventfd");
    thread_ = std::thread([this] { run(); });
  }
  ~Typing() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  Typing(const Typing&) = delete;
  bool left() const noexcept { return left_; }

 private:
  void run() {
    char bytes[4096];
    for (;;) {
      pollfd fds[] = {{stop_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[0].revents) return;
      if (!fds[1].revents) continue;
      const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) return;
      std::string_view typed(bytes, static_cast<std::size_t>(size));
      const std::size_t leave = leaves_ ? typed.find(kLeave) : std::string_view::npos;
      try {
        if (leave != 0) stream_.write_stdin(typed.substr(0, leave));
      } catch (const Error&) {
        return;  // its machine has ended, which the other side tells
      }
      if (leave == std::string_view::npos) continue;
      left_ = true;
      return;
    }
  }

  engine::ExecStream& stream_;
  const bool leaves_;
  const UniqueFd stop_;
  std::atomic<bool> left_ = false;
  std::thread thread_;
};

void run(const Options& options, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  const std::vector<engine::ExecInfo> commands = engine.commands(options.sandbox);
  const auto console = std::find_if(commands.begin(), commands.end(), [](const engine::ExecInfo& command) {
    return command.argv == std::vector<std::string>{"console"} && command.running;
  });
  if (engine.inspect(options.sandbox).spec.backend != "fullvm" || console == commands.end())
    throw usage_error("sandbox " + quote(options.sandbox) + " has no console").hint("a fullvm that runs has one");
  const std::unique_ptr<engine::ExecStream> stream = engine.attach(options.sandbox, console->exec_id);
  const bool terminal = on_terminal();
  std::optional<RawTerminal> raw;
  if (terminal) {
    std::cerr << "^] leaves it\n";
    raw.emplace();
  }
  const Typing typing(*stream, terminal);
  while (!typing.left()) {
    const std::optional<engine::ExecEvent> event = stream->next(std::chrono::milliseconds(100));
    if (!event) continue;
    if (event->kind == engine::ExecEvent::Kind::Exited) break;
    call.out().raw(event->data);
  }
}

}  // namespace

void add_vm_console(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("console", "Sit down at the serial console of a fullvm");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.note(
      "Shows what it has said so far, then goes on with what is typed, up to ^] or the machine's end. Without a "
      "terminal "
      "standard input is typed. dsec logs shows what it says without typing, also afterwards.");
  verb.example("dsec vm console desktop");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
