#pragma once

#include <string>

#include "layers/git/tree_walk.h"

namespace dsec::layers {

/// What to tell of a tree in which files are pointers of Git LFS, whose contents git does not have; empty where there
/// are none.
std::string lfs_warning(const GitObjects& objects, const GitTree& tree);

}  // namespace dsec::layers
