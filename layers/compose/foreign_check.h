#pragma once

#include "core/engine/layer_store.h"

namespace dsec::layers {

/// Checks the images of a layer that was not built here before the kernel sees them: fsck.erofs where there is one, and
/// a walk over everything. Throws Error naming the path when an image has an xattr other than security.capability,
/// user.* (without user.overlay.*), POSIX ACLs, and trusted.overlay.opaque=y or an empty trusted.overlay.origin; a
/// device other than a 0:0 whiteout; contents outside its blobs; directories in a loop. Marks the layer as trusted in
/// the store when all is well.
void check_foreign_layer(engine::LayerStore& store, const engine::StoredLayer& layer);

}  // namespace dsec::layers
