#pragma once

#include <memory>

#include "core/engine/layer_packer.h"

namespace dsec::layers {

/// Makes layers of what sandboxes have written. `store` must outlive it.
std::unique_ptr<engine::LayerPacker> make_layer_packer(engine::LayerStore& store);

/// How many snapshots may lie on each other before the next one takes them all in. Each is one more filesystem to mount
/// and one more directory to look into for every name that is not there: man/dsec-snapshot.1.md tells what that costs.
inline constexpr std::size_t kLongestChain = 16;

}  // namespace dsec::layers
