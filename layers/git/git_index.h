#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/git/libgit.h"

namespace dsec::layers {

/// One path of an index as a checkout leaves it.
struct GitIndexEntry {
  std::string path;
  std::uint32_t mode = 0;
  ObjectId id;
  std::uint64_t size = 0;  ///< of the file that was checked out; 0 for a submodule
};

/// The bytes of an index (git's index-format(5), version 2) in which every file has the times `time` and belongs to
/// 0:0. Device and inode numbers are 0, since they are known only once a layer is mounted: the first `git status` reads
/// each file once and notes them. Written by hand because libgit2 ties writing an index to a work tree.
std::string git_index_bytes(std::vector<GitIndexEntry> entries, std::int64_t time);

}  // namespace dsec::layers
