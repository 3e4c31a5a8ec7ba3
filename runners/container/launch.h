#pragma once

#include <filesystem>

#include "runners/container/channel.h"

namespace dsec::runners {

/// Executes `program` (load_guest_program) as the keeper of the sandbox in `directory`, as nobody's child in the v2
/// cgroup `cgroup`, with nothing of ours but the other end of the returned connection. The calling process, however
/// large, is not copied. Throws Error.
Channel launch_keeper(int program, const std::filesystem::path& directory, int cgroup);

}  // namespace dsec::runners
