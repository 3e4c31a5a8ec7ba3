#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/network_report.h"
#include "core/model/sandbox_spec.h"

namespace dsec::engine {

enum class SandboxState {
  Creating,  ///< its lease exists, it does not run yet
  Running,
  Paused,
  Stopped,   ///< ended by its command, a stop, its lifetime or idleness; the record and writable layer stay until rm
  Failed,    ///< could not be made, or its PID 1 was killed
  Orphaned,  ///< its keeper is gone: dsec gc removes what is left
};
std::string_view to_string(SandboxState state);

struct SandboxInfo {
  std::string id;  ///< [a-z2-7]{22}: 6 of the host, 16 random
  SandboxSpec spec;
  SandboxState state = SandboxState::Creating;
  std::string reason;                                    ///< why it stopped, failed or is orphaned; empty while it runs
  std::chrono::system_clock::time_point created, ended;  ///< ended: epoch while it runs
  std::optional<ExecResult> main_result;                 ///< of the command it ended with
  std::vector<std::string> command;                      ///< argv of the main command, if any
  int keeper_pid = 0;                                    ///< 0 when there is none
};

struct SandboxStats {
  std::uint64_t memory_bytes = 0, memory_limit = 0;  ///< limit 0: none
  std::uint64_t cpu_usec = 0;
  std::uint64_t pids = 0, pids_limit = 0;
  std::uint64_t disk_bytes = 0, disk_limit = 0;  ///< of the writable layer
  std::optional<std::uint64_t> oom_kills;
};

/// One difference between a sandbox's writable layer and its layers, as `docker diff` prints it.
struct Change {
  enum class Kind { Added, Modified, Deleted };
  Kind kind;
  std::string path;  ///< absolute, bytes
};

/// What a running command says; see ExecStream::next.
struct ExecEvent {
  enum class Kind { Stdout, Stderr, Exited };
  Kind kind;
  std::string data;   ///< for Stdout and Stderr; with a TTY everything is Stdout
  ExecResult result;  ///< for Exited, always the last event
};

/// The client's end of one command. Destroying it detaches: the command goes on. One thread may call next() while
/// another writes.
class ExecStream {
 public:
  virtual ~ExecStream() = default;
  /// Names the command in attach(); unique in its sandbox.
  virtual const std::string& exec_id() const = 0;
  /// Waits for the next event; empty when `timeout` has passed. Throws Error when the keeper is gone.
  virtual std::optional<ExecEvent> next(std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  virtual void write_stdin(std::string_view bytes) = 0;
  virtual void close_stdin() = 0;
  virtual void resize(std::uint16_t rows, std::uint16_t columns) = 0;
  /// To its process group, as from a terminal; SIGTERM, SIGUSR1 and SIGUSR2 to the command alone, as stop() does.
  virtual void signal(int signo) = 0;
};

/// One command of a sandbox as `dsec inspect` lists it.
struct ExecInfo {
  std::string exec_id;
  std::vector<std::string> argv;
  bool running = false;
  std::optional<ExecResult> result;
};

struct ListFilter {
  bool all = false;                           ///< also those that do not run
  std::map<std::string, std::string> labels;  ///< each must be there; an empty value matches any
};

/// Where `logs` sends records of the main command's output.
using LogSink =
    std::function<void(ExecEvent::Kind stream, std::chrono::system_clock::time_point time, std::string_view data)>;
struct LogOptions {
  bool follow = false;
  std::optional<std::size_t> tail;  ///< last lines only
  std::string exec_id;              ///< empty: the main command, else of that one
};

/// The lifecycle of sandboxes, local or remote: every command line, daemon and SDK goes through it. `id` is a full id,
/// a unique prefix of at least 4 characters, or a name; an unknown one throws Error (Usage) with near names. All calls
/// may be made from several threads.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Makes and starts a sandbox that runs nothing yet. On failure nothing is left.
  virtual SandboxInfo create(const SandboxSpec& spec) = 0;
  virtual std::unique_ptr<ExecStream> exec(const std::string& id, const ExecSpec& spec) = 0;
  /// From the beginning of what is kept, then live.
  virtual std::unique_ptr<ExecStream> attach(const std::string& id, const std::string& exec_id) = 0;
  virtual std::vector<ExecInfo> commands(const std::string& id) = 0;

  virtual std::vector<SandboxInfo> list(const ListFilter& filter) = 0;
  virtual SandboxInfo inspect(const std::string& id) = 0;
  /// Waits until the sandbox has ended.
  virtual SandboxInfo wait(const std::string& id, std::optional<std::chrono::milliseconds> timeout) = 0;
  /// The stop signal to its main command (or PID 1's children), after `grace` SIGKILL to all. No error when it has
  /// ended.
  virtual void stop(const std::string& id, std::chrono::milliseconds grace) = 0;
  /// Removes record and writable layer; a running sandbox is refused unless `force`.
  virtual void remove(const std::string& id, bool force) = 0;

  virtual void logs(const std::string& id, const LogOptions& options, const LogSink& sink) = 0;
  virtual SandboxStats stats(const std::string& id) = 0;
  virtual std::vector<Change> diff(const std::string& id) = 0;
  /// Writes `path` (resolved inside the sandbox, never out of it) as a tar stream to `fd`; ids are those seen inside.
  virtual void copy_out(const std::string& id, const std::string& path, int fd) = 0;
  /// Unpacks a tar stream from `fd` into the existing directory `path`.
  virtual void copy_in(const std::string& id, const std::string& path, int fd) = 0;

  virtual NetworkReport network(const std::string& id) = 0;
  /// Replaces the policies of a sandbox that runs with one, or switches its phase: at once, also for what is open.
  virtual void set_network(const std::string& id, const NetworkPlan& plan) = 0;
  /// The records of its network from byte `from` on: whole lines of JSON; empty when there are no more.
  virtual std::string network_log(const std::string& id, std::uint64_t from) = 0;
};

}  // namespace dsec::engine
