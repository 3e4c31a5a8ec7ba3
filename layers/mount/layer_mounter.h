#pragma once

#include <memory>

#include "core/engine/blob_loader.h"
#include "core/engine/home.h"
#include "core/engine/layer_mounter.h"
#include "core/engine/layer_store.h"

namespace dsec::layers {

/// The mounter of this home's layers; `store` must outlive it. Thread-safe, and any number of processes may have one.
/// What it learns of a stack (conflicts, attributes to restore) is kept in cache/stacks/, so that the next opening of
/// the same stack, by whomever, costs a copy of each mount. `loader`, which must outlive it, too, serves data blobs
/// that the store has not; null: such layers cannot be mounted.
std::unique_ptr<engine::LayerMounter> make_layer_mounter(const engine::Home& home, engine::LayerStore& store,
                                                         engine::BlobLoader* loader = nullptr);

}  // namespace dsec::layers
