#pragma once

#include <functional>

#include "runners/isolation/id_map.h"

namespace dsec::runners {

/// Runs `work` in a thread of its own that acts on files as root of a sandbox with these ids does: files it makes
/// belong to that root, and of this process's capabilities it has those over owners and modes alone. What it throws is
/// thrown here.
void as_sandbox_root(const IdMap& ids, const std::function<void()>& work);

}  // namespace dsec::runners
