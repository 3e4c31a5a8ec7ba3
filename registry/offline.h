#pragma once

#include <span>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

/// The layers from the store, when all of their data is here as well; asks nobody. Throws Error (Usage) that tells
/// everything which is missing: layers, and how much of the data of others.
std::vector<engine::StoredLayer> find_here(LocalStore& store, std::span<const LayerRef> refs);

/// Bytes of a layer's data that are neither in the store nor in the cache of chunks.
std::uint64_t bytes_away(LocalStore& store, const LayerManifest& manifest);

}  // namespace dsec::registry
