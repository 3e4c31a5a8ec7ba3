#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/lease.h"
#include "core/engine/local_sandboxes.h"
#include "core/engine/recording.h"

namespace dsec::engine {

/// What an operation is asked of.
struct Subject {
  std::string id;
  std::optional<SandboxInfo> info;  ///< none: the sandbox was removed, and what is asked for stands in its trajectory
  RecordingPlace place;
};

/// Records the operations of the sandboxes of a home, and tells what is recorded of those that are gone.
class Recorder {
 public:
  Recorder(const Home& home, LocalSandboxes& sandboxes) : home_(home), sandboxes_(sandboxes) {}

  /// Makes the trajectory of a new sandbox, and tells its keeper where it is.
  void begin_trajectory(const Lease& lease, const std::vector<StoredLayer>& layers, RunnerRequest& request) const;
  /// Of a sandbox that may be gone: by its id, its beginning, or the name it had. Throws Error (Usage).
  std::string trajectory_id(const std::string& text) const;
  /// See Engine::recorded.
  std::optional<Operation> recorded(const std::string& text, const std::string& op_id) const;
  /// A sandbox that was removed, as its trajectory tells of it; of one without a trajectory the id alone.
  SandboxInfo ended_sandbox(const std::string& id) const;

  /// The one place that decides who is asked: a sandbox that is there, else one that was removed and has an operation
  /// of this op_id. Throws what LocalSandboxes::inspect does.
  Subject subject(const std::string& id, const OperationContext& context) const;

  /// Carries out `work` between its records, see record_operation(). Not called when the op_id is recorded.
  using Work = std::function<void(Runner&, const std::filesystem::path& directory, Operation::Done& done)>;
  static Operation record(const Subject& subject, const OperationRequest& request, const Work& work);

  /// A command that the keeper records, which `start` returns nothing for when it knows the op_id.
  using Start = std::function<std::unique_ptr<ExecStream>(Runner&, const std::filesystem::path&)>;
  std::unique_ptr<ExecStream> run_once(const std::string& id, const OperationRequest& request,
                                       const Start& start) const;

 private:
  const Home& home_;
  LocalSandboxes& sandboxes_;
};

}  // namespace dsec::engine
