#pragma once

#include <filesystem>

#include "core/base/unique_fd.h"
#include "core/engine/layer_mounter.h"

namespace dsec::runners {

/// The whole tree of a sandbox that does not run, as a detached mount, with ids as seen inside. Writes go to its
/// writable layer; only one such tree of a sandbox may be used at a time, and none while it runs. Throws Error.
UniqueFd compose_tree(const std::filesystem::path& sandbox, const engine::LayerStack& stack);

}  // namespace dsec::runners
