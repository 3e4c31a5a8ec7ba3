#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "layers/git/git_objects.h"
#include "layers/source.h"

namespace dsec::layers {

enum class GitFileKind { Regular, Executable, Symlink, Submodule };

/// One path of a commit's tree; folders are those that its files need.
struct GitFile {
  std::string path;
  GitFileKind kind = GitFileKind::Regular;
  ObjectId id;
  /// The mode that git's index has for it.
  std::uint32_t index_mode() const;
};

/// What a tree comes to when it is checked out.
struct TreeTotals {
  std::uint64_t entries = 0;  ///< files, symlinks, submodules, and folders that have any
  std::uint64_t bytes = 0;    ///< of blobs, before line ends are converted
  std::uint64_t longest_path = 0;
  bool attributes = false;  ///< it has a .gitattributes somewhere
};

/// The tree of a commit, found fit to be checked out.
class GitTree {
 public:
  /// Looks at each different tree once, so that a tree of trees of trees that names the same ones over and over is seen
  /// for what it is before it is walked. Throws Error naming the entry when git would not check it out: names that are
  /// ".git" to some file system, "." and "..", a '/' inside a name, one name twice, entries out of order, unknown
  /// types, a symlink called .gitmodules; and when a limit is exceeded.
  GitTree(const GitObjects& objects, const ObjectId& id, const InputLimits& limits);

  const TreeTotals& totals() const { return totals_; }
  /// Calls `visit` for each file in the order of the tree.
  void walk(const std::function<void(const GitFile&)>& visit) const;

 private:
  void walk_below(const ObjectId& id, const std::string& prefix,
                  const std::function<void(const GitFile&)>& visit) const;

  const GitObjects& objects_;
  ObjectId id_;
  TreeTotals totals_;
  std::set<ObjectId> empty_;  // trees without any file, which git does not check out
};

/// Throws Error when a blob of so many bytes would take more than half of this host's memory: git's objects cannot be
/// read piece by piece, and a small one may say that it unpacks to anything.
void refuse_oversized(const std::string& path, std::uint64_t bytes);

/// Whether `name` is ".git" on a Linux, Windows or macOS file system: any case, "git~1", trailing dots and spaces, an
/// NTFS stream, code points that HFS+ ignores.
bool names_git_dir(std::string_view name);

}  // namespace dsec::layers
