#pragma once

#include <memory>
#include <string>

#include "core/base/unique_fd.h"
#include "core/engine/file_watch.h"

namespace dsec::runners {

/// Watches `path` of the sandbox whose PID 1 is `init` (open_init). Throws Error when it is not there, or the limits of
/// this host on watches are reached.
std::unique_ptr<engine::FileWatch> watch_files(UniqueFd init, const std::string& path, bool recursive);

}  // namespace dsec::runners
