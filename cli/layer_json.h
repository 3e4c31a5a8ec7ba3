#pragma once

#include "core/base/json.h"
#include "core/engine/layer_store.h"

namespace dsec::cli {

/// The members of -o json for a layer of the store, stable; its manifest stands in them as it is. `on_demand`:
/// some of its data is loaded while it is used, since it is not here.
Json to_json(const engine::StoredLayer& layer, bool on_demand);

}  // namespace dsec::cli
