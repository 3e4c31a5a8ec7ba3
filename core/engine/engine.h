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

#include "core/base/unique_fd.h"
#include "core/engine/branching.h"
#include "core/engine/file_watch.h"
#include "core/engine/http_exchange.h"
#include "core/engine/layer_store.h"
#include "core/engine/network_report.h"
#include "core/engine/screen.h"
#include "core/engine/session.h"
#include "core/engine/trajectory.h"
#include "core/engine/update.h"
#include "core/model/network_change.h"
#include "core/model/sandbox_spec.h"
#include "core/model/session_spec.h"

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

struct MadeSandbox {
  SandboxInfo info;
  bool now = true;  ///< made by this call
};

/// What the VMM of a machine has of the host's memory, in bytes.
struct HostMemory {
  std::uint64_t own = 0;             ///< is free once it has ended
  std::uint64_t shared = 0;          ///< pages of files that it has mapped: layers, its program
  std::uint64_t part_of_shared = 0;  ///< of these, each divided by how many processes have it mapped
};

struct SandboxStats {
  std::uint64_t memory_bytes = 0, memory_limit = 0;  ///< limit 0: none
  std::optional<std::uint64_t> memory_peak;          ///< the most it had at once; empty where nothing counts it
  std::optional<std::uint64_t> memory_before_pause;  ///< of one that is paused, where a memory group counts it
  std::optional<HostMemory> host_memory;             ///< of a machine, whose other figures are its guest's
  std::uint64_t cpu_usec = 0;
  std::uint64_t pids = 0, pids_limit = 0;
  std::uint64_t disk_bytes = 0, disk_limit = 0;  ///< of the writable layer
  std::optional<std::uint64_t> oom_kills;
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
  /// For those who wait for many streams at once, without a thread for each: once next(0) has given nothing, something
  /// may have come when this is readable; when it is writable, write_stdin() of up to kPromptInput bytes does not wait.
  /// Belongs to the stream. -1: neither call ever waits.
  virtual int descriptor() const = 0;
  static constexpr std::size_t kPromptInput = 16 << 10;
};

/// One command of a sandbox as `dsec inspect` lists it.
struct ExecInfo {
  std::string exec_id;
  std::vector<std::string> argv;  ///< of a session's command its text, as one
  std::string session;            ///< id of the session that it ran in; empty: a process of its own
  bool running = false;
  std::optional<ExecResult> result;
};

/// What of a command's output an attaching client has already.
struct AttachFrom {
  std::uint64_t stdout_bytes = 0, stderr_bytes = 0;
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
  /// Asked about twice a second while a command says nothing: whether to go on following it. Empty: always.
  std::function<bool()> go_on;
};
/// How often that is.
inline constexpr std::chrono::milliseconds kGoOnInterval{500};

/// The lifecycle of sandboxes, local or remote: every command line, daemon and SDK goes through it. `id` is a full id,
/// a unique prefix of at least 4 characters, or a name; an unknown one throws Error (Usage) with near names. All calls
/// may be made from several threads.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Makes and starts a sandbox that runs nothing yet. On failure nothing is left.
  virtual SandboxInfo create(const SandboxSpec& spec) = 0;
  /// The same, once under each `key`, the op_id of the command that is to be its first: who repeats it gets the sandbox
  /// of then, which may have ended or be gone, so that exec() with this op_id tells what came of it, or goes on with it
  /// where it never began. Waits for one that is being made. Another spec under the key throws Error (Usage).
  virtual MadeSandbox create_once(const SandboxSpec& spec, const std::string& key) = 0;
  /// With an op_id that is recorded already nothing runs: what is recorded comes again (of a command that still runs,
  /// from its beginning and then live), also of a sandbox that has ended or was removed; another request under the same
  /// op_id throws Error (Usage).
  virtual std::unique_ptr<ExecStream> exec(const std::string& id, const ExecSpec& spec) = 0;
  /// What is kept after `from`, then live; of a command that has ended what is kept and how it ended.
  virtual std::unique_ptr<ExecStream> attach(const std::string& id, const std::string& exec_id,
                                             const AttachFrom& from = {}) = 0;
  virtual std::vector<ExecInfo> commands(const std::string& id) = 0;
  /// To a running command: its process group, or what a session's command has started. Unknown ids throw Error (Usage).
  virtual void signal(const std::string& id, const std::string& exec_id, int signo,
                      const OperationContext& context = {}) = 0;

  /// Returns when the shell listens. Throws Error when it cannot be started or is none.
  virtual SessionInfo open_session(const std::string& id, const SessionSpec& spec) = 0;
  /// `session` is an id or a name. One command at a time: while another runs in it this throws Error.
  virtual std::unique_ptr<ExecStream> run_in_session(const std::string& id, const std::string& session,
                                                     const SessionCommand& command) = 0;
  virtual std::vector<SessionInfo> sessions(const std::string& id) = 0;
  /// Kills the shell and all that was started in it; returns when they are gone.
  virtual void close_session(const std::string& id, const std::string& session,
                             const OperationContext& context = {}) = 0;

  /// A stream to a TCP port on the sandbox's own loopback, IPv4 or else IPv6. Throws Error when nobody listens there.
  virtual UniqueFd connect(const std::string& id, std::uint16_t port) = 0;
  /// One request to a server on such a port. Throws Error when there is no answer.
  virtual void http(const std::string& id, std::uint16_t port, const HttpRequest& request, const HttpSink& sink) = 0;
  /// Of the file or directory `path`; links are followed within the sandbox up to it, and never below it.
  virtual std::unique_ptr<FileWatch> watch(const std::string& id, const std::string& path, bool recursive) = 0;

  /// What is on the screen of a machine, as a PNG file. Throws Error (Usage) when the sandbox has none.
  virtual std::string screenshot(const std::string& id, const OperationContext& context = {}) = 0;
  /// Keys and pointer of such a machine. Returns when it has been given all of it, which may not have had its effect.
  virtual void screen_input(const std::string& id, const ScreenInput& input, const OperationContext& context = {}) = 0;
  /// A connection to its screen by RFB (VNC). What is done by it is not recorded.
  virtual UniqueFd connect_screen(const std::string& id) = 0;

  virtual std::vector<SandboxInfo> list(const ListFilter& filter) = 0;
  virtual SandboxInfo inspect(const std::string& id) = 0;
  /// Waits until the sandbox has ended.
  virtual SandboxInfo wait(const std::string& id, std::optional<std::chrono::milliseconds> timeout) = 0;
  /// The stop signal to its main command (or PID 1's children), after `grace` SIGKILL to all. No error when it has
  /// ended.
  virtual void stop(const std::string& id, std::chrono::milliseconds grace, const OperationContext& context = {}) = 0;
  /// Removes record and writable layer; a running sandbox is refused unless `force`. No process, mount or control group
  /// is left when it returns. Files of the writable layer may go a little later, but before the engine does; after a
  /// crash gc removes them.
  virtual void remove(const std::string& id, bool force) = 0;

  /// Freezes everything inside and gives its memory back as far as the host can; returns when both are done. The next
  /// operation resumes it (looking at it does not: list, inspect, wait, logs, stats, snapshot, fork). Its lifetimes go
  /// on. No error when it is paused already; throws Error when it does not freeze, or an operation comes meanwhile.
  virtual void pause(const std::string& id, const OperationContext& context = {}) = 0;
  /// No error when it is not paused.
  virtual void resume(const std::string& id, const OperationContext& context = {}) = 0;

  /// Changes limits, times and labels. All is checked before anything is changed, and what fails then is taken back;
  /// the sandbox may be paused, and stays so. Of one that has ended only labels can be changed. Memory that is in use
  /// above a lower limit is given back, or else Error (Usage) tells how much it is. Returns how it is afterwards.
  virtual SandboxInfo update(const std::string& id, const UpdateRequest& request) = 0;

  /// Makes a layer of what the sandbox has changed: a snapshot, which stands on all its layers, or a workspace, which
  /// stands on its base alone. The sandbox stands still while it is read; it may also have ended.
  virtual Snapshot snapshot(const std::string& id, const SnapshotRequest& request) = 0;
  /// Starts sandboxes that have the same files, from one snapshot of them, with the settings of the first, which goes
  /// on. No processes are copied. On failure none is left.
  virtual std::vector<SandboxInfo> fork(const std::string& id, const ForkRequest& request) = 0;

  virtual void logs(const std::string& id, const LogOptions& options, const LogSink& sink) = 0;
  virtual SandboxStats stats(const std::string& id) = 0;
  virtual std::vector<Change> diff(const std::string& id) = 0;
  /// The same, with how much of each file changed; directories are left out.
  virtual std::vector<FileChange> diff_stat(const std::string& id) = 0;
  /// The changes themselves, to `fd`. The sandbox stands still meanwhile.
  virtual void diff_content(const std::string& id, DiffForm form, int fd) = 0;
  /// Writes `path` (resolved inside the sandbox, never out of it) as a tar stream to `fd`; ids are those seen inside.
  /// An op_id that is recorded already gives the stream of then, where it was kept.
  virtual void copy_out(const std::string& id, const std::string& path, int fd,
                        const OperationContext& context = {}) = 0;
  /// Unpacks a tar stream from `fd` into the existing directory `path`. With an op_id that is recorded already the
  /// stream is read and compared with the one of then, and nothing is written.
  virtual void copy_in(const std::string& id, const std::string& path, int fd,
                       const OperationContext& context = {}) = 0;

  /// Newest first; what cannot be read is told in `problems`.
  virtual std::vector<TrajectoryInfo> trajectories(std::vector<std::string>& problems) = 0;
  /// Also of a sandbox that was removed: by its id, its beginning, or the name it had.
  virtual Trajectory trajectory(const std::string& id) = 0;
  /// What is recorded under an op_id, also of a sandbox that was removed; empty: nothing. Every call that takes an
  /// OperationContext tells of it, too: with an op_id that is recorded nothing is done, and the recorded result or
  /// error comes again.
  virtual std::optional<Operation> recorded(const std::string& id, const std::string& op_id) = 0;
  /// Refused while the sandbox is there.
  virtual void remove_trajectory(const std::string& id) = 0;

  virtual NetworkReport network(const std::string& id) = 0;
  /// Changes the policies of a sandbox that runs with one, or switches its phase: at once, also for what is open. One
  /// that is paused stays so. Returns what holds then.
  virtual NetworkPlan set_network(const std::string& id, const NetworkChange& change,
                                  const OperationContext& context = {}) = 0;
  /// The records of its network from byte `from` on: whole lines of JSON; empty when there are no more.
  virtual std::string network_log(const std::string& id, std::uint64_t from) = 0;

  /// A layer that sandboxes can be made of. Throws Error (Usage) with near names.
  virtual StoredLayer layer(const LayerRef& ref) = 0;
};

}  // namespace dsec::engine
