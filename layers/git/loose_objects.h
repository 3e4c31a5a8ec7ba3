#pragma once

#include <filesystem>

struct git_odb_backend;

namespace dsec::layers {

/// The objects below `folder` that lie in files of their own, for git_odb_add_backend(). libgit2 has such a backend
/// too, but up to 1.5 it never returns from a file that ends in the middle.
git_odb_backend* make_loose_backend(const std::filesystem::path& folder);

}  // namespace dsec::layers
