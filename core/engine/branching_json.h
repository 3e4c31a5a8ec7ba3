#pragma once

#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/engine/engine.h"

namespace dsec::engine {

/// Requests and results of branching as trajectories have them; man/dsec-trajectory.5.md is their reference. What
/// reads them throws Error (Usage).
Json snapshot_json(const SnapshotRequest& request);
SnapshotRequest snapshot_request_from(const Json& json);
Json snapshot_json(const Snapshot& snapshot);
Snapshot snapshot_from(const Json& json);
Json fork_json(const ForkRequest& request);
ForkRequest fork_request_from(const Json& json);
Json forks_json(const std::vector<SandboxInfo>& forks);
/// The ids of the forks.
std::vector<std::string> forks_from(const Json& json);

}  // namespace dsec::engine
