#pragma once

#include <string>

#include "core/engine/engine.h"
#include "core/engine/secrets.h"
#include "core/engine/trajectory.h"

namespace dsec::cli {

/// A trajectory by the name of its sandbox, or in a file or folder; a path is what is written as one, or is there.
engine::Trajectory find_trajectory(const std::string& what, engine::Engine& engine);

/// What was asked for, in one line: "exec pytest -q", "write /workspace".
std::string describe_request(const Operation& operation);
/// What came of it, in a few words: "exit code 1", "failed: …", "unknown outcome".
std::string describe_outcome(const Operation& operation);

/// The members of -o json: the header, and an operation with its output.
Json to_json(const TrajectoryHeader& header);
Json to_json(const engine::Trajectory& trajectory, const Operation& operation, const engine::SecretMask& mask);

/// With the words of the configuration; knows what `trajectory` sets.
engine::SecretMask secret_mask(const engine::Trajectory& trajectory);

}  // namespace dsec::cli
