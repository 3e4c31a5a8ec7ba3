#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec {

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< exit code, when signal is 0
  int signal = 0;  ///< number of the deadly signal, else 0
  bool ok() const noexcept { return code == 0 && signal == 0; }
  /// The shell's convention: the code, or 128 + signal.
  int shell_code() const noexcept { return signal ? 128 + signal : code; }
  /// "exit code 2" or "signal 9 (KILL)".
  std::string str() const;
};

struct SpawnOptions {
  std::vector<std::string> argv;                        ///< argv[0] is looked up in PATH when it has no slash
  std::optional<std::vector<std::string>> environment;  ///< "NAME=value"; absent: inherited
  std::string directory;                                ///< empty: inherited
  /// {descriptor here, descriptor in the child}: 0, 1, 2 not named here become /dev/null (0) or are inherited (1, 2).
  std::vector<std::pair<int, int>> descriptors;
  bool kill_with_parent = true;  ///< PR_SET_PDEATHSIG SIGKILL
};

/// Owns one child through its pidfd, so a recycled pid is never signalled. Destroying a running child kills and reaps
/// it.
class ChildProcess {
 public:
  /// Throws Error naming the step that failed in the child (for instance exec: No such file or directory).
  static ChildProcess spawn(const SpawnOptions& options);
  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const noexcept { return pid_; }
  int pidfd() const noexcept { return pidfd_.get(); }
  void signal(int signo);
  ExitStatus wait();
  /// Empty when it still runs after `timeout`.
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds timeout);

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  pid_t pid_;
  UniqueFd pidfd_;
  bool reaped_ = false;
};

struct CommandResult {
  ExitStatus status;
  std::string out, err;  ///< captured streams, each cut at 16 MiB
};

/// Runs a program to its end with captured streams; `input` goes to its standard input.
CommandResult run_command(const SpawnOptions& options, std::string_view input = {});

/// When a process began, in clock ticks since boot (field 22 of /proc/<pid>/stat): with the pid it names a process for
/// as long as this boot lasts. 0 when there is none.
std::uint64_t process_start_ticks(pid_t pid);

/// A pipe whose ends are close-on-exec: first is the reading end.
std::pair<UniqueFd, UniqueFd> make_pipe();

}  // namespace dsec
