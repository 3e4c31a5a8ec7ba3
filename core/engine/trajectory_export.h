#pragma once

#include "core/engine/secrets.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// What export_trajectory wrote.
struct Exported {
  std::uint64_t bytes = 0, operations = 0, files = 0;
  std::uint64_t masked = 0;  ///< places in files where a secret stood
};

/// Writes a trajectory with all its files as one file that Trajectory::read and import_trajectory take;
/// man/dsec-trajectory.5.md has the format. Of what `mask` knows no byte is written: in requests, results, outputs,
/// inputs, files that were copied and the network log, also where a secret lies across two parts of an output or is cut
/// by the middle that was not kept. Throws Error.
Exported export_trajectory(const Trajectory& trajectory, const SecretMask& mask, int fd);

}  // namespace dsec::engine
