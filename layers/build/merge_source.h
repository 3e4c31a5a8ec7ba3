#pragma once

#include <memory>
#include <span>

#include "core/engine/layer_store.h"
#include "layers/build/stack_lookup.h"
#include "layers/source.h"

namespace dsec::layers {

/// One tree out of layers that were stacked on each other, bottom to top, each seen as what it changes. Deletions stay
/// where `below`, what the result will stand on, has something to delete. `store` and `below` must outlive the source.
std::unique_ptr<Source> make_merge_source(std::span<const engine::StoredLayer> bottom_to_top, engine::LayerStore& store,
                                          StackLookup& below, SourceFacts facts);

}  // namespace dsec::layers
