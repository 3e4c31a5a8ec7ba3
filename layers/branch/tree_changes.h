#pragma once

#include <sys/stat.h>

#include <functional>
#include <optional>
#include <string>

namespace dsec::layers {

/// One thing that is no directory, before or after.
struct FileState {
  int directory = -1;  ///< open, only while it is visited
  std::string name;    ///< in `directory`
  struct stat info {};

  /// The bytes of a file, the target of a symlink. Throws Error; also when the file has more than `limit`.
  std::string content(std::size_t limit) const;
};

/// Of two files of equal size. Throws Error.
bool same_bytes(const FileState& left, const FileState& right);

/// A path at which a tree shows something else than the one below; directories do not count.
struct ChangedFile {
  std::string path;  ///< relative, bytes
  std::optional<FileState> before, after;
};

/// Visits what the writable layer `upper` of overlayfs changes of `lower`, both open directories, in bytewise order of
/// names, files that vanish with a directory one by one. A file that was copied up but is the same is visited, too.
void compare_trees(int upper, int lower, const std::function<void(const ChangedFile&)>& visit);

}  // namespace dsec::layers
