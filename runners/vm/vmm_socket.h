#pragma once

#include <chrono>
#include <filesystem>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// Connects to the unix socket that a VMM listens at or is about to, within `patience`. The directory is one that the
/// VMM writes to: what it has made a link of is not followed. Throws Error.
UniqueFd connect_to_vmm(const std::filesystem::path& socket, std::chrono::milliseconds patience);

}  // namespace dsec::runners
