#pragma once

#include "core/base/json.h"
#include "core/engine/trajectory_import.h"

namespace dsec::engine {

/// Trajectories of SWE-agent (https://swe-agent.com/latest/usage/trajectories/): an object whose `trajectory` is a list
/// of turns with `action`, a command for the shell that stays, and `observation`, what it said.
bool is_swe_agent(const Json& document);

/// Each turn becomes a step with what the model said, and a command in a session. Throws Error naming what is wrong.
ImportedTrajectory import_swe_agent(const Home& home, const Json& document, TrajectoryHeader header);

}  // namespace dsec::engine
