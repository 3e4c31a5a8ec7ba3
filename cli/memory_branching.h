#pragma once

#include "core/engine/memory_snapshots.h"

namespace dsec::cli {

class Invocation;

/// Of the engine of this call; throws Error where it has none.
engine::MemoryBranching& memory_branching(Invocation& call);

}  // namespace dsec::cli
