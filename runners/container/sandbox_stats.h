#pragma once

#include <filesystem>

#include "core/engine/engine.h"
#include "runners/isolation/cgroups.h"

namespace dsec::runners {

/// What a sandbox uses now, and its limits. One that has ended uses disk alone. Throws Error.
engine::SandboxStats sandbox_stats(const CgroupHost& host, const std::filesystem::path& directory);

}  // namespace dsec::runners
