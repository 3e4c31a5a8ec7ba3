#pragma once

#include <map>
#include <string>

#include "core/base/unique_fd.h"
#include "layers/compose/merged_tree.h"

namespace dsec::layers {

/// Reads the files of a merged tree: from uncompressed images directly, from compressed ones through a mount that
/// nobody else sees, which needs root. Not thread-safe; `store` and `tree` must outlive it.
class Contents {
 public:
  Contents(engine::LayerStore& store, MergedTree& tree) : store_(store), tree_(tree) {}

  /// Fills `buffer` from `offset` of the file at `path`, which is `file`; returns fewer bytes only at its end.
  std::size_t read(const StackedInode& file, const std::string& path, std::uint64_t offset, char* buffer,
                   std::size_t size);
  /// The parts of a file in order; a compressed one is one part.
  void extents(const StackedInode& file, const std::function<void(const ErofsExtent&)>& visit);

 private:
  int open(const StackedInode& file, const std::string& path);

  engine::LayerStore& store_;
  MergedTree& tree_;
  std::map<std::size_t, UniqueFd> mounts_;  ///< of compressed images, by index
  std::size_t open_image_ = 0;
  std::string open_path_;
  UniqueFd open_file_;  ///< the last file read of a compressed image
};

}  // namespace dsec::layers
