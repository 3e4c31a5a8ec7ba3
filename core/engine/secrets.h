#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// Hides the values of variables whose name contains one of some words, in any case: where they are set, and wherever a
/// value of at least 6 bytes stands in anything else, such as output that shows it.
class SecretMask {
 public:
  static const std::vector<std::string>& default_words();
  explicit SecretMask(std::vector<std::string> words = default_words());

  bool is_secret(std::string_view variable) const;
  /// Takes note of a list of "NAME=value".
  void learn(const std::vector<std::string>& env);
  /// Of everything that a trajectory sets.
  void learn(const Trajectory& trajectory);

  std::string text(std::string text) const;
  /// All strings in it; bytes in base64 too.
  Json json(const Json& value) const;
  /// Request, result, and what of the output stands in the log; output in files is up to the caller.
  Operation operation(Operation operation) const;
  TrajectoryHeader header(TrajectoryHeader header) const;

 private:
  std::string variable(const std::string& entry) const;
  std::vector<std::string> words_, values_;
};

}  // namespace dsec::engine
