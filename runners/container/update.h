#pragma once

#include <filesystem>

#include "runners/isolation/cgroups.h"

namespace dsec::runners {

/// Runner::update. `directory` is that of a sandbox with a keeper.
void update_sandbox(const CgroupHost& host, const std::filesystem::path& directory, const SandboxSpec& before,
                    SandboxSpec& after);

}  // namespace dsec::runners
