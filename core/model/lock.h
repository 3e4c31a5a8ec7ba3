#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/digest.h"

namespace dsec {

/// One layer as `dsec.lock` pins it.
struct LockedLayer {
  Digest digest;                              ///< of the manifest
  std::map<std::string, std::string> inputs;  ///< what identified its sources when it was built
  std::string recipe;                         ///< digest of its entry in dsec.yaml; empty: made elsewhere
  bool operator==(const LockedLayer&) const = default;
};

/// dsec.lock: every layer and environment of a dsec.yaml pinned by digest, with what they were built by. JSON;
/// man/dsec.lock.5.md is its reference.
struct Lock {
  static constexpr int kVersion = 1;

  std::map<std::string, std::string> args;  ///< --arg values that dsec.yaml was read with
  std::string builder, mkfs, kernel, platform;
  std::map<std::string, LockedLayer> layers;                ///< by "kind/name:tag"
  std::map<std::string, std::vector<Digest>> environments;  ///< layers bottom to top, by name

  /// Throws Error (Usage) naming `origin`; a newer version is refused.
  static Lock parse(std::string_view text, std::string_view origin);
  /// Indented, sorted, with a final newline: made to be read in diffs.
  std::string str() const;
  bool operator==(const Lock&) const = default;
};

}  // namespace dsec
