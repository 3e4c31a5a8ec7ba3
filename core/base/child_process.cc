#include "core/base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>

#include "core/base/error.h"

namespace dsec {
namespace {

int pidfd_open(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

enum class Step : int { Descriptors, Directory, Exec };

struct Report {
  Step step;
  int error;
};

const char* step_name(Step step) {
  switch (step) {
    case Step::Descriptors:
      return "pass on descriptors to";
    case Step::Directory:
      return "enter the directory of";
    case Step::Exec:
      return "execute";
  }
  return "start";
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

ExitStatus from_siginfo(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status};
}

// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void run_child(const SpawnOptions& options, char** argv, char** environment, int report_fd, int null_fd,
                            std::vector<int>& sources, pid_t parent) {
  const auto fail = [&](Step step) {
    const Report report{step, errno};
    [[maybe_unused]] const ssize_t put = ::write(report_fd, &report, sizeof report);
    ::_exit(127);
  };
  if (options.kill_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  // Sources are moved above every target first, so that no dup2 overwrites a source still needed.
  int floor = 16;
  for (const auto& [from, to] : options.descriptors) floor = to >= floor ? to + 1 : floor;
  if (report_fd < floor) {
    report_fd = ::fcntl(report_fd, F_DUPFD_CLOEXEC, floor);
    if (report_fd < 0) ::_exit(127);
  }
  bool has_input = false;
  for (std::size_t i = 0; i < options.descriptors.size(); ++i) {
    has_input = has_input || options.descriptors[i].second == 0;
    sources[i] = ::fcntl(options.descriptors[i].first, F_DUPFD_CLOEXEC, floor);
    if (sources[i] < 0) fail(Step::Descriptors);
  }
  if (!has_input && ::dup2(null_fd, 0) < 0) fail(Step::Descriptors);
  for (std::size_t i = 0; i < options.descriptors.size(); ++i)
    if (::dup2(sources[i], options.descriptors[i].second) < 0) fail(Step::Descriptors);
  if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) fail(Step::Directory);
  ::execvpe(argv[0], argv, environment);
  fail(Step::Exec);
  ::_exit(127);
}

}  // namespace

std::string ExitStatus::str() const {
  if (!signal) return "exit code " + std::to_string(code);
  const char* name = sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + (name ? std::string(" (") + name + ")" : "");
}

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("make a pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

ChildProcess ChildProcess::spawn(const SpawnOptions& options) {
  if (options.argv.empty()) throw Error(ErrorKind::Internal, "no program to execute");
  std::vector<std::string> argument_texts = options.argv;
  std::vector<std::string> environment_texts = options.environment.value_or(std::vector<std::string>{});
  const std::vector<char*> argv = pointers(argument_texts), own_environment = pointers(environment_texts);
  char** environment = options.environment ? const_cast<char**>(own_environment.data()) : environ;
  std::vector<int> sources(options.descriptors.size(), -1);
  auto [report_in, report_out] = make_pipe();
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) throw system_error("open '/dev/null'");
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw system_error("start " + quote(options.argv[0]));
  if (pid == 0)
    run_child(options, const_cast<char**>(argv.data()), environment, report_out.get(), null.get(), sources, parent);
  report_out.reset();
  ChildProcess child(pid, UniqueFd(pidfd_open(pid)));
  Report report;
  ssize_t got;
  while ((got = ::read(report_in.get(), &report, sizeof report)) < 0 && errno == EINTR) {
  }
  if (got == static_cast<ssize_t>(sizeof report)) {
    child.wait();
    Error error = system_error(std::string(step_name(report.step)) + " " + quote(options.argv[0]), report.error);
    if (report.step == Step::Exec && report.error == ENOENT)
      error.hint("install the program " + quote(options.argv[0]) +
                 " or correct PATH; dsec doctor lists what is needed");
    throw error;
  }
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), reaped_(other.reaped_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || reaped_) return;
  ::kill(pid_, SIGKILL);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
}

void ChildProcess::signal(int signo) {
  if (!reaped_ && ::kill(pid_, signo) != 0) throw system_error("signal process " + std::to_string(pid_));
}

ExitStatus ChildProcess::wait() {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0)
    if (errno != EINTR) throw system_error("wait for process " + std::to_string(pid_));
  reaped_ = true;
  return from_siginfo(info);
}

std::optional<ExitStatus> ChildProcess::wait_for(std::chrono::milliseconds timeout) {
  pollfd poll_fd{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  const int ready = ::poll(&poll_fd, 1, static_cast<int>(timeout.count()));
  if (ready > 0) return wait();
  return std::nullopt;
}

CommandResult run_command(const SpawnOptions& options, std::string_view input) {
  constexpr std::size_t kKept = 16u << 20;
  auto [in_read, in_write] = make_pipe();
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  SpawnOptions piped = options;
  piped.descriptors.insert(piped.descriptors.end(), {{in_read.get(), 0}, {out_write.get(), 1}, {err_write.get(), 2}});
  ChildProcess child = ChildProcess::spawn(piped);
  in_read.reset();
  out_write.reset();
  err_write.reset();
  ::fcntl(in_write.get(), F_SETFL, O_NONBLOCK);
  sigset_t broken_pipe, old;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, &old);
  CommandResult result;
  if (input.empty()) in_write.reset();
  while (out_read || err_read) {
    pollfd fds[3] = {{out_read.get(), POLLIN, 0}, {err_read.get(), POLLIN, 0}, {in_write.get(), POLLOUT, 0}};
    if (::poll(fds, 3, -1) < 0 && errno != EINTR) throw system_error("poll");
    const auto drain = [&](const pollfd& ready, UniqueFd& fd, std::string& text) {
      if (!fd || !ready.revents) return;
      char buffer[64 << 10];
      const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
      if (got <= 0 && errno != EINTR) fd.reset();
      if (got > 0 && text.size() < kKept) text.append(buffer, static_cast<std::size_t>(got));
    };
    drain(fds[0], out_read, result.out);
    drain(fds[1], err_read, result.err);
    if (in_write && fds[2].revents) {
      const ssize_t put = ::write(in_write.get(), input.data(), input.size());
      if (put > 0) input.remove_prefix(static_cast<std::size_t>(put));
      if ((put < 0 && errno != EAGAIN && errno != EINTR) || input.empty()) in_write.reset();
    }
  }
  in_write.reset();
  result.status = child.wait();
  if (!sigismember(&old, SIGPIPE)) {
    // Swallow a SIGPIPE that became pending while it was blocked, so that unblocking does not deliver it.
    const timespec now{};
    while (::sigtimedwait(&broken_pipe, nullptr, &now) > 0) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return result;
}

std::uint64_t process_start_ticks(pid_t pid) {
  const UniqueFd file(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[1024];
  const ssize_t got = file ? ::read(file.get(), buffer, sizeof buffer) : -1;
  if (got <= 0) return 0;
  // The name in field 2 may hold anything, so reading starts after its last ')'.
  const std::string_view stat(buffer, static_cast<std::size_t>(got));
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string_view::npos; ++field) at = stat.find(' ', at + 1);
  std::uint64_t ticks = 0;
  if (at != std::string_view::npos) std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), ticks);
  return ticks;
}

}  // namespace dsec
