#pragma once

#include <cstdint>
#include <string>

#include "layers/git/git_objects.h"
#include "layers/git/repository_files.h"

namespace dsec::layers {

/// How a work tree differs from the commit that it is on.
struct WorkTreeState {
  std::uint64_t staged = 0;   ///< paths whose index entry differs from HEAD
  std::uint64_t changed = 0;  ///< files that differ from their index entry
  std::uint64_t deleted = 0;
  std::uint64_t untracked = 0;  ///< paths that git does not know and was not told to ignore
  std::string unknown;          ///< why it could not be looked at; empty: it was
  bool dirty() const { return staged + changed + deleted + untracked > 0; }
  /// "1 staged, 2 changed, 1 deleted, 1 untracked".
  std::string summary() const;
};

/// Compares by reading alone: the index is not refreshed, and no file outside the work tree is looked at through a
/// symlink in it. Files that differ in line ends only count as unchanged. Never throws for what it finds.
WorkTreeState look_at_work_tree(const RepositoryFiles& files, const GitObjects& objects);

}  // namespace dsec::layers
