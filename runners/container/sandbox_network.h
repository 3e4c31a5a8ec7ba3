#pragma once

#include <cstdint>
#include <filesystem>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// /proc/<pid 1> of a running sandbox, which as long as it is open means no other process. Throws Error when the
/// sandbox does not run.
UniqueFd open_init(const std::filesystem::path& directory);

/// The pidfd of PID 1. Throws Error when the sandbox does not run.
UniqueFd pidfd_of_init(const std::filesystem::path& directory);

/// A stream to a TCP port on the loopback of the network that PID 1 (open_init) is in: 127.0.0.1, else ::1. Nothing of
/// this process enters the sandbox but a thread its network namespace, for as long as the connection is made.
UniqueFd connect_to(const UniqueFd& init, std::uint16_t port);

}  // namespace dsec::runners
