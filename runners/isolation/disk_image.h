#pragma once

#include <cstdint>
#include <filesystem>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// An ext4 filesystem in a sparse file, through a loop device that the kernel takes away with the last mount of it: a
/// crash leaves nothing but the file. Needs mkfs.ext4 and /dev/loop-control.

/// Throws Error saying what is missing here for make_disk_image and mount_disk_image.
void check_disk_images();

/// Makes the file, `bytes` long and nearly empty; removes it again when that fails. Throws Error.
void make_disk_image(const std::filesystem::path& image, std::uint64_t bytes);

/// Makes the file `copy` of what `image` holds now, with its holes; where the filesystem can, both share their blocks
/// until one is written to. Nobody may write to it meanwhile. Throws Error.
void copy_disk_image(const std::filesystem::path& image, const std::filesystem::path& copy);

/// A detached mount of it. Several at once, also from several processes, show the same filesystem. Throws Error.
UniqueFd mount_disk_image(const std::filesystem::path& image, std::uint64_t mount_flags);

}  // namespace dsec::runners
