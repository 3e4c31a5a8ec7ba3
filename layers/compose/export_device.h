#pragma once

#include "core/engine/layer_store.h"
#include "layers/overlaybd/commit.h"

namespace dsec::layers {

/// Writes the file system of a layer as a sealed OverlayBD layer to an empty file: a device that holds the EROFS image,
/// its metadata first and the contents behind them, which Linux mounts from 6.4 on (compressed ones from 5.4 on).
/// Refuses layers of several images. The same layer and options give the same bytes; the UUID is the image's unless
/// told.
overlaybd::Written export_device(engine::LayerStore& store, const engine::StoredLayer& layer, int fd,
                                 const overlaybd::NewLayer& wanted, Progress& progress);

}  // namespace dsec::layers
