#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/engine/home.h"
#include "core/engine/runner.h"

namespace dsec::registry {

/// GcPorts::reclaim_sandboxes over the Runner port. Dead is a sandbox whose keeper is gone without having ended it in
/// order, one whose creator died before it ran, and an ended one of a foreground run whose client died before removing
/// it. `runner` gives the one of a backend; it may throw, or return null for one that this host does not have, and then
/// the sandbox is left alone with a warning.
std::vector<std::string> reclaim_dead_sandboxes(
    const engine::Home& home, const std::function<engine::Runner*(const std::string& backend)>& runner, bool dry_run,
    std::vector<std::string>& warnings);

}  // namespace dsec::registry
