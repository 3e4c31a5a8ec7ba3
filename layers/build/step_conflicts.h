#pragma once

#include "core/engine/layer_store.h"
#include "layers/build/stack_lookup.h"

namespace dsec::layers {

/// Throws Error (Usage) when what a step has copied would put a directory in the place of something else in the layers
/// below, or the reverse: a file copied to /bin/tool would hide all of a base whose /bin is a symlink. A command that
/// replaces something has been told to.
void refuse_conflicts(const engine::StoredLayer& step, StackLookup& below, engine::LayerStore& store);

}  // namespace dsec::layers
