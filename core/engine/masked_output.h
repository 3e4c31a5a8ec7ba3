#pragma once

#include <string>
#include <vector>

#include "core/engine/secrets.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// A piece of what an operation wrote.
struct OutputPiece {
  unsigned stream = 0;  ///< 0 stdout, 1 stderr
  std::string data;
  bool mark = false;  ///< it tells that something is missing here
};

/// What an operation wrote, in order of time, with every byte of a secret masked: also of one that lies across two
/// pieces or at the edge of what was not kept. Of each stream at most about `most` bytes, and a mark where more were.
std::vector<OutputPiece> masked_output(const Trajectory& trajectory, const Operation& operation, const SecretMask& mask,
                                       std::size_t most);

}  // namespace dsec::engine
