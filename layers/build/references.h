#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/engine/layer_store.h"
#include "layers/build/project.h"
#include "layers/build/schema.h"

namespace dsec::layers {

/// Which references of a project are meant; absent: all.
using WhichReferences = std::function<bool(const LayerReference&)>;

/// Layers that a dsec.yaml names, and that are neither made by it nor in the store, each with the nearest name that is.
std::vector<Problem> dangling_references(const Project& project, engine::LayerStore& store,
                                         const WhichReferences& which = {});

/// Throws Error (Usage) that lists them all as FILE:LINE:COLUMN: text, when there are any.
void refuse_dangling_references(const Project& project, engine::LayerStore& store, const WhichReferences& which = {});

}  // namespace dsec::layers
