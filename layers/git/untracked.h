#pragma once

#include <cstdint>
#include <filesystem>

struct git_index;

namespace dsec::layers {

/// How many paths of a work tree `git status` would call untracked: files that the index does not have, and folders
/// that have nothing else, each once. What .gitignore files of the tree and `exclude` (the repository's info/exclude)
/// name does not count; a list in the user's configuration is not read. Throws Error.
std::uint64_t count_untracked(const std::filesystem::path& work_tree, const git_index* index,
                              const std::filesystem::path& exclude);

}  // namespace dsec::layers
