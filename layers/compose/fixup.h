#pragma once

#include <map>
#include <span>
#include <string>

#include "core/engine/layer_store.h"
#include "layers/source.h"

namespace dsec::layers {

/// Directories whose attributes the composition gets wrong, because the topmost layer that has them has them only as
/// implicit parents: each with the attributes of the topmost layer that has it explicitly, and with all its parents.
/// Empty when nothing is wrong. Needs no root.
std::map<std::string, Entry> find_fixups(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top);

}  // namespace dsec::layers
