#pragma once

#include <filesystem>

#include "core/model/sandbox_spec.h"

namespace dsec::runners {

/// Limits that not even a sandbox's own processes could live with: what fails then would not name the limit. Throws
/// Error (Usage).
void check_smallest(const Limits& limits);

/// Where filesystems in memory are mounted. Throws Error (Usage).
void check_tmpfs(const SandboxSpec& spec);

/// What is bound and mounted where. `home` is the DSEC_HOME of the sandbox. Throws Error (Usage).
void check_mounts(const SandboxSpec& spec, const std::filesystem::path& home);

}  // namespace dsec::runners
