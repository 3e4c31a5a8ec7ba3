#include "cli/attend.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/exec_json.h"
#include "cli/terminal.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::cli {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

sigset_t forwarded_set() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signo : kForwarded) ::sigaddset(&set, signo);
  ::sigaddset(&set, SIGWINCH);
  return set;
}

// Our input, and our signals and window size, on their way to the command, each in a thread of its own: the command may
// write while it does not read, and has to be told of signals all the same.
class InputPump {
 public:
  InputPump(engine::ExecStream& stream, const AttendOptions& options)
      : stream_(stream), options_(options), stop_(::eventfd(0, EFD_CLOEXEC)) {
    const sigset_t set = forwarded_set();
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!stop_ || !signals_) throw system_error("watch for signals");
    signal_thread_ = std::thread([this] { pump(signals_.get(), [this] { return forward_signals(); }); });
    if (options_.stdin_open)
      input_thread_ = std::thread([this] { pump(STDIN_FILENO, [this] { return forward_input(); }); });
  }
  // The command has ended: nothing that was sent to it waits any more.
  ~InputPump() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    signal_thread_.join();
    if (input_thread_.joinable()) input_thread_.join();
  }
  InputPump(const InputPump&) = delete;
  InputPump& operator=(const InputPump&) = delete;

 private:
  // Calls `forward` whenever `fd` has something, until it says that there will be no more, or the command has ended.
  template <typename Forward>
  void pump(int fd, Forward&& forward) {
    for (bool more = true; more;) {
      pollfd fds[] = {{stop_.get(), POLLIN, 0}, {fd, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
      if (fds[0].revents) return;
      try {
        if (fds[1].revents) more = forward();
      } catch (const Error&) {
        // The command ended between the wake-up and the write; its last event tells how.
        return;
      }
    }
  }

  bool forward_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signo = static_cast<int>(info.ssi_signo);
      if (signo == SIGWINCH) {
        if (!options_.tty) continue;
        const auto [rows, columns] = terminal_size();
        stream_.resize(rows, columns);
      } else {
        stream_.signal(signo);
      }
    }
    return true;
  }

  bool forward_input() {
    char buffer[64 * 1024];
    const ssize_t size = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (size > 0) {
      stream_.write_stdin({buffer, static_cast<std::size_t>(size)});
      return true;
    }
    stream_.close_stdin();
    return false;
  }

  engine::ExecStream& stream_;
  const AttendOptions options_;
  UniqueFd stop_, signals_;
  std::thread signal_thread_, input_thread_;
};

// False when nobody reads any more.
bool put(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      // The terminal or pipe may have been made non-blocking by whoever shares it.
      pollfd waiting{fd, POLLOUT, 0};
      ::poll(&waiting, 1, -1);
    } else if (errno == EPIPE) {
      return false;
    } else if (errno != EINTR) {
      throw system_error(fd == STDOUT_FILENO ? "write to standard output" : "write to standard error");
    }
  }
  return true;
}

// False when nobody reads any more, or when writing failed; the command is told before the failure is.
bool deliver(const engine::ExecEvent& event, const AttendOptions& options, std::exception_ptr& failed) {
  try {
    if (options.format == Format::Json) return put(STDOUT_FILENO, canonical_json(to_json(event)) + "\n");
    const bool to_stderr = options.only_stderr || event.kind == engine::ExecEvent::Kind::Stderr;
    return put(to_stderr ? STDERR_FILENO : STDOUT_FILENO, event.data);
  } catch (const Error&) {
    failed = std::current_exception();
    return false;
  }
}

}  // namespace

ForwardedSignals::ForwardedSignals() {
  const sigset_t set = forwarded_set();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // A closed output is told by EPIPE, so that the command can be told in turn.
  ::signal(SIGPIPE, SIG_IGN);
}

ForwardedSignals::~ForwardedSignals() {
  const sigset_t set = forwarded_set();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

ExecResult attend(engine::ExecStream& stream, const AttendOptions& options) {
  using namespace std::chrono_literals;
  std::optional<RawTerminal> raw;
  if (options.tty && options.stdin_open && on_terminal()) raw.emplace();
  const InputPump input(stream, options);

  bool heard = true;
  std::exception_ptr output_failed;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  for (;;) {
    std::optional<std::chrono::milliseconds> patience;
    if (deadline)
      patience =
          std::max(0ms, std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now()));
    // A command that goes on writing gives an event each time: the deadline counts, not the silence.
    std::optional<engine::ExecEvent> event;
    if (!patience || *patience > 0ms) event = stream.next(patience);
    if (!event) {
      stream.signal(SIGKILL);
      deadline = std::nullopt;
      continue;
    }
    const bool last = event->kind == engine::ExecEvent::Kind::Exited;
    if (heard && (!last || options.format == Format::Json) && !deliver(*event, options, output_failed)) {
      heard = false;
      if (!last) stream.signal(SIGPIPE);
      deadline = std::chrono::steady_clock::now() + 2s;
    }
    if (!last) continue;
    if (output_failed) std::rethrow_exception(output_failed);
    return event->result;
  }
}

}  // namespace dsec::cli
