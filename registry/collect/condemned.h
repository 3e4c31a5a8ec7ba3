#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "core/base/digest.h"
#include "registry/layout/notes.h"

namespace dsec::registry {

/// What gc has seen that nothing names, and since when (seconds since 1970): a note condemned/<hex>.json for each, so
/// that who takes one away and who writes another never undo each other's work; man/dsec-registry.5.md.
struct Condemned {
  std::map<Digest, std::uint64_t> layers, blobs;

  /// What is no such note does not count: then grace begins anew.
  static Condemned read(const Notes& notes);
  /// Brings the notes up to date with this, `before` being what was read of them.
  void write(const Condemned& before, const Notes& notes, const std::string& author) const;
  bool operator==(const Condemned&) const = default;
};

/// One of the notes.
struct CondemnedNote {
  Digest digest;
  bool is_layer = false;  ///< else a blob
  std::uint64_t since = 0;

  /// Throws Error.
  static CondemnedNote parse(std::string_view text);
  std::string text() const;
  bool operator==(const CondemnedNote&) const = default;
};

/// Takes away the notes about what a publisher is going to refer to, so that its grace begins anew should it be let go.
void pardon(const Notes& notes, const std::set<Digest>& announced);

}  // namespace dsec::registry
