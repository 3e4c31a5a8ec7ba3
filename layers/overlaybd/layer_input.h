#pragma once

#include <fcntl.h>

#include <filesystem>

#include "core/base/unique_fd.h"

namespace dsec::layers::overlaybd {

/// Opens a file that somebody named. Nothing is waited for; throws Error also for what is neither a regular file nor a
/// block device, since only these have bytes that can be read at any place.
UniqueFd open_input(const std::filesystem::path& path, int access = O_RDONLY);

}  // namespace dsec::layers::overlaybd
