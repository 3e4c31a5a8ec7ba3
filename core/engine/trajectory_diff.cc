#include "core/engine/trajectory_diff.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace dsec::engine {
namespace {

// Beyond so many pairs the table of the longest common sequence would be too large.
constexpr std::size_t kMostPairs = 25'000'000;

bool same_request(const Operation& left, const Operation& right) {
  return left.kind == right.kind && left.request == right.request;
}

std::string outcome(const Operation& operation) {
  return operation.done ? std::string(to_string(operation.done->outcome)) : "unknown";
}

std::vector<OperationDifference> differences(const Trajectory& left_log, const Operation& left,
                                             const Trajectory& right_log, const Operation& right) {
  std::vector<OperationDifference> found;
  const auto compare = [&](const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) found.push_back({what, a, b});
  };
  compare("kind", left.kind, right.kind);
  compare("request", left.request, right.request);
  compare("outcome", outcome(left), outcome(right));
  if (!left.done || !right.done) return found;
  const Json a = parse_json(left.done->result, "result"), b = parse_json(right.done->result, "result");
  // Told by the output itself, or no property of what was done.
  static const std::set<std::string> passed_over{"duration_us", "stdout_bytes", "stderr_bytes"};
  Json members = a;
  members.update(b);
  for (const auto& [name, ignored] : members.items())
    if (!passed_over.contains(name))
      compare(name, canonical_json(a.value(name, Json())), canonical_json(b.value(name, Json())));
  compare("stdout", left_log.output(left, 0), right_log.output(right, 0));
  compare("stderr", left_log.output(left, 1), right_log.output(right, 1));
  return found;
}

}  // namespace

std::vector<OperationPair> diff_trajectories(const Trajectory& left, const Trajectory& right) {
  const std::vector<Operation>&a = left.operations, &b = right.operations;
  std::vector<OperationPair> pairs;
  const auto add = [&](const Operation* from, const Operation* to) {
    OperationPair pair{from, to, {}};
    if (from && to) pair.differences = differences(left, *from, right, *to);
    pairs.push_back(std::move(pair));
  };
  // What both begin and end with needs no table; most trajectories that are compared are alike.
  std::size_t begin = 0, end_a = a.size(), end_b = b.size();
  while (begin < end_a && begin < end_b && same_request(a[begin], b[begin])) ++begin;
  while (end_a > begin && end_b > begin && same_request(a[end_a - 1], b[end_b - 1])) --end_a, --end_b;
  for (std::size_t i = 0; i < begin; ++i) add(&a[i], &b[i]);

  const std::size_t rows = end_a - begin, columns = end_b - begin;
  std::size_t i = begin, j = begin;
  if (rows && columns && rows * columns <= kMostPairs) {
    // longest[i][j]: of the common sequences of what follows.
    std::vector<std::uint32_t> longest((rows + 1) * (columns + 1));
    const auto at = [&](std::size_t row, std::size_t column) -> std::uint32_t& {
      return longest[(row - begin) * (columns + 1) + (column - begin)];
    };
    for (std::size_t row = end_a; row-- > begin;)
      for (std::size_t column = end_b; column-- > begin;)
        at(row, column) = same_request(a[row], b[column]) ? at(row + 1, column + 1) + 1
                                                          : std::max(at(row + 1, column), at(row, column + 1));
    while (i < end_a && j < end_b) {
      if (same_request(a[i], b[j])) {
        add(&a[i++], &b[j++]);
      } else if (at(i, j) == 0) {
        // Nothing in common any more: one was done instead of the other.
        add(&a[i++], &b[j++]);
      } else if (at(i + 1, j) >= at(i, j + 1)) {
        add(&a[i++], nullptr);
      } else {
        add(nullptr, &b[j++]);
      }
    }
  } else {
    while (i < end_a && j < end_b) add(&a[i++], &b[j++]);
  }
  while (i < end_a) add(&a[i++], nullptr);
  while (j < end_b) add(nullptr, &b[j++]);
  for (i = end_a, j = end_b; i < a.size();) add(&a[i++], &b[j++]);
  return pairs;
}

}  // namespace dsec::engine
