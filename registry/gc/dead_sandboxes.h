#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/engine/home.h"
#include "core/engine/runner.h"

namespace dsec::registry {

/// GcPorts::reclaim_sandboxes over the Runner port: for each directory below sandboxes/ whose creator is dead and whose
/// keeper is not alive and did not end it in order, Runner::reclaim and then the directory. `runner` gives the one of a
/// backend; it may throw or return null for one that this host does not have, and then the sandbox is left alone.
std::vector<std::string> reclaim_dead_sandboxes(
    const engine::Home& home, const std::function<engine::Runner*(const std::string& backend)>& runner, bool dry_run);

}  // namespace dsec::registry
