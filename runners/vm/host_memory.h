#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

#include "core/engine/engine.h"

namespace dsec::runners {

/// What a process has of this host's memory; empty when it is gone. Needs root.
std::optional<engine::HostMemory> host_memory(pid_t pid);

/// From the text of /proc/PID/smaps_rollup (Linux 5.9 for parts that are told apart). Throws Error when it is none.
engine::HostMemory parse_host_memory(std::string_view rollup);

}  // namespace dsec::runners
