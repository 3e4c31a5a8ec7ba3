#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/engine/engine.h"
#include "core/engine/secrets.h"
#include "core/engine/trajectory.h"

namespace dsec::cli {

/// A trajectory by the name of its sandbox, or in a file or folder; a path is what is written as one, or is there.
engine::Trajectory find_trajectory(const std::string& what, engine::Engine& engine);

/// What was asked for, in one line: "exec pytest -q", "write /workspace".
std::string describe_request(const Operation& operation);
/// What came of it, in a few words: "exit code 1", "failed: …", "running", "unknown outcome".
std::string describe_outcome(const engine::Trajectory& trajectory, const Operation& operation);

/// From the making of the sandbox to the end of its first command; empty when none has ended.
std::optional<std::chrono::milliseconds> first_command(const engine::Trajectory& trajectory);
/// What had come of layers that are loaded on demand when the last command ended; empty where none is.
std::string describe_loading(const engine::Trajectory& trajectory);

/// The members of -o json: the header, and an operation with its output.
Json to_json(const TrajectoryHeader& header);
Json to_json(const engine::Trajectory& trajectory, const Operation& operation, const engine::SecretMask& mask);

/// With the words of the configuration; knows what `trajectory` sets.
engine::SecretMask secret_mask(const engine::Trajectory& trajectory);

}  // namespace dsec::cli
