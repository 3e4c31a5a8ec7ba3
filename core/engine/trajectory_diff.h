#pragma once

#include <string>
#include <vector>

#include "core/engine/trajectory.h"

namespace dsec::engine {

/// One member that two operations do not have alike: "exit_code", "stdout", …
struct OperationDifference {
  std::string what, left, right;
};

/// An operation of one trajectory beside its like of the other; null: there is none.
struct OperationPair {
  const Operation* left = nullptr;
  const Operation* right = nullptr;
  std::vector<OperationDifference> differences;  ///< of a pair; times and durations do not count
  bool same() const { return left && right && differences.empty(); }
};

/// Operations that are the same request are set beside each other, in order, so that one more or less on one side is
/// seen as that. The trajectories must outlive the result.
std::vector<OperationPair> diff_trajectories(const Trajectory& left, const Trajectory& right);

}  // namespace dsec::engine
