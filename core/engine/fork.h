#pragma once

#include <string>
#include <vector>

#include "core/engine/engine.h"

namespace dsec::engine {

/// How one fork of `parent` is made: its settings, on `layers`, under `name`, with a machine id of its own. Its
/// lifetimes count from its own beginning.
SandboxSpec fork_spec(const SandboxInfo& parent, const ForkRequest& request, std::vector<Digest> layers,
                      std::string name);

/// Files that no fork takes over, since they would make random numbers of several systems the same; as in gitignore(5).
std::vector<std::string> random_seed_files();

}  // namespace dsec::engine
