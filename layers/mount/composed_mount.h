#pragma once

#include <filesystem>
#include <span>

#include "core/base/unique_fd.h"

namespace dsec::layers {

/// Shows the detached mounts `lowers`, bottom to top, as one read-only tree at the directory `target` of the calling
/// process's mount namespace. Deletions of a layer that has nothing below it do not show.
void mount_composed(std::span<const UniqueFd> lowers, const std::filesystem::path& target);

/// Takes such a tree away; refuses any other mount, and one that is in use.
void unmount_composed(const std::filesystem::path& target);

}  // namespace dsec::layers
