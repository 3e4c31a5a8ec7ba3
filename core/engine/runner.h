#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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

/// Opens what a sandbox is stacked from, for calls that look below its writable layer.
using OpenLayers = std::function<LayerStack()>;

/// A backend: how sandboxes are isolated. Calls on one sandbox may come from any process; `directory` is all a call
/// needs to find it again. Knows nothing of names, leases or layers.
class Runner {
 public:
  virtual ~Runner() = default;

  /// Throws Error (Usage or Failed) naming what of `spec` this host cannot enforce; called before anything is made.
  virtual void check(const SandboxSpec& spec) = 0;
  /// Returns when PID 1 runs and its keeper answers. On failure everything it made is removed again.
  virtual void start(RunnerRequest request) = 0;
  virtual RunnerStatus status(const std::filesystem::path& directory) = 0;
  virtual std::unique_ptr<ExecStream> exec(const std::filesystem::path& directory, const ExecSpec& spec) = 0;
  virtual std::unique_ptr<ExecStream> attach(const std::filesystem::path& directory, const std::string& exec_id) = 0;
  virtual std::vector<ExecInfo> commands(const std::filesystem::path& directory) = 0;
  /// Waits until the sandbox has ended; false when `timeout` has passed first.
  virtual bool wait(const std::filesystem::path& directory, std::optional<std::chrono::milliseconds> timeout) = 0;
  virtual void stop(const std::filesystem::path& directory, std::chrono::milliseconds grace) = 0;
  /// Kills and removes all that is left of a sandbox outside `directory` and in it, except lease.json; idempotent; also
  /// after a crash at any moment, and after a reboot.
  virtual void reclaim(const std::filesystem::path& directory) = 0;

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
