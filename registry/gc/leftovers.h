#pragma once

#include <filesystem>
#include <vector>

#include "core/engine/home.h"

namespace dsec::registry {

/// Temporary files and directories in a home whose makers are gone. What belongs to sandboxes themselves (upper, work)
/// is not looked into: names there are theirs.
std::vector<std::filesystem::path> find_leftovers(const engine::Home& home);

/// Bytes allocated by a file, or by all below a directory; hard links count once, mounts are not entered. 0 when it is
/// gone.
std::uint64_t allocated_bytes(const std::filesystem::path& path);

}  // namespace dsec::registry
