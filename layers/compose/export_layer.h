#pragma once

#include <cstdint>

#include "core/base/progress.h"
#include "core/engine/layer_store.h"

namespace dsec::layers {

/// Writes the layer's tree as one PAX tar archive to `fd`, in the form of an OCI layer: deletions as ".wh.NAME", opaque
/// directories with ".wh..wh..opq", hard links within an image kept, holes kept, implicit parents left out. The same
/// layer gives the same bytes, and importing them gives the same tree. Compressed layers need root, because only a
/// mount can read them. Returns the bytes written.
std::uint64_t export_layer(engine::LayerStore& store, const engine::StoredLayer& layer, int fd, Progress& progress);

}  // namespace dsec::layers
