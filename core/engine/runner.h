#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/engine/engine.h"
#include "core/engine/layer_mounter.h"

namespace dsec::engine {

/// What a backend gets to start one sandbox from.
struct RunnerRequest {
  std::string id;
  std::filesystem::path
      directory;  ///< sandboxes/<id>, made by the engine, holding lease.json; the runner makes the rest in it
  SandboxSpec spec;
  LayerStack stack;
  std::filesystem::path trajectory;  ///< directory whose log its keeper continues; empty: nothing is recorded
  std::uint32_t trajectory_checksum = 0;
  std::vector<FileLock> holds;  ///< whoever keeps the sandbox has their descriptors open as long as it lives
};

/// An operation that its caller carries out, as it is told to whoever writes the trajectory.
struct OperationRequest {
  std::string kind;
  std::string request;  ///< canonical JSON
  OperationContext context;
};

/// An operation between its two records. Destroyed without end(), also by the death of its process, it is recorded as
/// interrupted.
class OpenOperation {
 public:
  virtual ~OpenOperation() = default;
  virtual std::uint64_t seq() const = 0;
  /// Returns when the record is as durable as an answer to the caller needs. Times are the writer's own.
  virtual void end(const Operation::Done& done) = 0;
};

/// What a sandbox's own record (written by its keeper) says.
struct RunnerStatus {
  SandboxState state = SandboxState::Creating;
  std::string reason;
  std::chrono::system_clock::time_point ended;
  std::optional<ExecResult> main_result;
  std::vector<std::string> command;
  int keeper_pid = 0;
};

/// As long as it lives, nothing inside the sandbox runs that it was asked of.
class Stillness {
 public:
  virtual ~Stillness() = default;
};

/// Opens what a sandbox is stacked from, for calls that look below its writable layer.
using OpenLayers = std::function<LayerStack()>;

/// A backend: how sandboxes are isolated. Calls on one sandbox may come from any process; `directory` is all a call
/// needs to find it again. Knows nothing of names, leases or layers.
class Runner {
 public:
  virtual ~Runner() = default;

  /// How it wants the layers: as mounts of this kernel (request.stack.lowers), as files (images), or as one disk.
  enum class Layers { Mounted, Files, Disk };
  virtual Layers wanted_layers() const { return Layers::Mounted; }
  /// Throws Error (Usage or Failed) naming what of `spec` this host cannot enforce; called before anything is made.
  /// Fills in spec.limits.class_by.
  virtual void check(SandboxSpec& spec) = 0;
  /// Returns when PID 1 runs and its keeper answers, with what status() would say. On failure everything it made is
  /// removed again.
  virtual RunnerStatus start(RunnerRequest request) = 0;
  virtual RunnerStatus status(const std::filesystem::path& directory) = 0;
  /// Null when its op_id is recorded already, and nothing was done.
  virtual std::unique_ptr<ExecStream> exec(const std::filesystem::path& directory, const ExecSpec& spec) = 0;
  /// Null when its op_id is recorded already; if that operation was still open, this waits for its end. Throws Error
  /// when no keeper lives. Where nothing is recorded the seq is 0.
  virtual std::unique_ptr<OpenOperation> begin(const std::filesystem::path& directory,
                                               const OperationRequest& request) = 0;
  virtual std::unique_ptr<ExecStream> attach(const std::filesystem::path& directory, const std::string& exec_id,
                                             const AttachFrom& from = {}) = 0;
  virtual std::vector<ExecInfo> commands(const std::filesystem::path& directory) = 0;
  virtual void signal(const std::filesystem::path& directory, const std::string& exec_id, int signo) = 0;
  /// Null from run_in_session when its op_id is recorded already, and nothing was done.
  virtual SessionInfo open_session(const std::filesystem::path& directory, const SessionSpec& spec) = 0;
  virtual std::unique_ptr<ExecStream> run_in_session(const std::filesystem::path& directory, const std::string& session,
                                                     const SessionCommand& command) = 0;
  virtual std::vector<SessionInfo> sessions(const std::filesystem::path& directory) = 0;
  virtual void close_session(const std::filesystem::path& directory, const std::string& session) = 0;
  virtual UniqueFd connect(const std::filesystem::path& directory, std::uint16_t port) = 0;
  virtual std::unique_ptr<FileWatch> watch(const std::filesystem::path& directory, const std::string& path,
                                           bool recursive) = 0;
  /// Waits until the sandbox has ended; false when `timeout` has passed first.
  virtual bool wait(const std::filesystem::path& directory, std::optional<std::chrono::milliseconds> timeout) = 0;
  virtual void stop(const std::filesystem::path& directory, std::chrono::milliseconds grace) = 0;
  /// See Engine::pause.
  virtual void pause(const std::filesystem::path& directory) = 0;
  virtual void resume(const std::filesystem::path& directory) = 0;
  /// See Engine::update; of one that lives. `before` is what its lease says. Fills in after.limits.class_by.
  virtual void update(const std::filesystem::path& directory, const SandboxSpec& before, SandboxSpec& after) = 0;
  /// Returns when nothing inside runs, which is at once when it is paused or has ended; processes that enter meanwhile
  /// wait before their first instruction. Throws Error when it does not freeze.
  virtual std::unique_ptr<Stillness> hold_still(const std::filesystem::path& directory) = 0;
  /// Kills and removes all that is left of a sandbox outside `directory` and in it, except lease.json; idempotent; also
  /// after a crash at any moment, and after a reboot.
  virtual void reclaim(const std::filesystem::path& directory) = 0;
  /// As reclaim, but may leave what is in `directory` to the caller, who removes it as a whole.
  virtual void release(const std::filesystem::path& directory) { reclaim(directory); }

  /// Removes what is there for sandboxes in general; called by gc when none is left. What is in use stays.
  virtual void release_shared() {}

  virtual void logs(const std::filesystem::path& directory, const LogOptions& options, const LogSink& sink) = 0;
  virtual SandboxStats stats(const std::filesystem::path& directory) = 0;
  virtual std::vector<Change> diff(const std::filesystem::path& directory, const OpenLayers& layers) = 0;
  /// The writable layer in overlayfs form (whiteouts, opaque directories) as a directory descriptor of a detached
  /// read-only mount: owners read through it are those seen inside. The sandbox may run or have stopped.
  virtual UniqueFd open_writable_layer(const std::filesystem::path& directory) = 0;
  /// Also of a sandbox that has ended.
  virtual void copy_out(const std::filesystem::path& directory, const OpenLayers& layers, const std::string& path,
                        int fd) = 0;
  virtual void copy_in(const std::filesystem::path& directory, const OpenLayers& layers, const std::string& path,
                       int fd) = 0;

  virtual NetworkReport network(const std::filesystem::path& directory) = 0;
  virtual void set_network(const std::filesystem::path& directory, const NetworkPlan& plan) = 0;
  virtual std::string network_log(const std::filesystem::path& directory, std::uint64_t from) = 0;
};

}  // namespace dsec::engine
