#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/engine/normalise.h"
#include "core/engine/trajectory.h"
#include "core/engine/trajectory_diff.h"

namespace dsec::engine {

/// One operation of a trajectory done again.
struct ReplayedOperation {
  enum class State {
    Same,
    Different,
    Skipped,  ///< it changes nothing that a replay could show, or cannot be done again: `why`
  };
  const Operation* recorded = nullptr;  ///< of the trajectory
  State state = State::Same;
  std::string why;
  std::vector<OperationDifference> differences;  ///< outputs as they are after normalisation
  std::string out, err;                          ///< what it wrote now
};

struct ReplayOptions {
  std::optional<std::uint64_t> until;                  ///< the last operation that is done, by its `seq`
  bool keep_going = false;                             ///< also after one that differs
  std::function<void(const ReplayedOperation&)> tell;  ///< after each, in the order of their ends
};

struct ReplayReport {
  std::size_t same = 0, different = 0, skipped = 0;
  std::uint64_t last = 0;  ///< `seq` of the last operation that was begun
};

/// The sandbox that a replay begins in: the recorded layers and settings, with the recorded hostname, without what only
/// the first had (name, lifetimes, binds are kept as they are part of what commands see).
SandboxSpec replay_spec(const TrajectoryHeader& header);

/// Does the operations of `trajectory` again in sandbox `id`, in the order in which they began; one that went on while
/// others began does so again. Operations are compared by outcome, exit code and output after `normaliser`. Throws
/// Error when the sandbox is lost.
ReplayReport replay(Engine& engine, const std::string& id, const Trajectory& trajectory, const Normaliser& normaliser,
                    const ReplayOptions& options);

}  // namespace dsec::engine
