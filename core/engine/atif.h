#pragma once

#include "core/base/json.h"
#include "core/engine/secrets.h"
#include "core/engine/trajectory_import.h"

namespace dsec::engine {

/// The Agent Trajectory Interchange Format
/// (https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md): what is written is version
/// 1.7, what is read any 1.x.
bool is_atif(const Json& document);

/// Each step becomes a step, and each call of a tool an operation: of a shell a command, of any other tool what it was.
/// A document that export_atif wrote gives back the operations that it was written of. Throws Error (Usage) naming the
/// place that is wrong.
ImportedTrajectory import_atif(const Home& home, const Json& document, TrajectoryHeader header);

/// Each operation becomes a step with one call and what came of it; what was imported becomes what it was. Files that
/// were copied have no place in the format; `left_out` tells how many. Secrets are masked.
Json export_atif(const Trajectory& trajectory, const SecretMask& mask, std::vector<std::string>& left_out);

}  // namespace dsec::engine
