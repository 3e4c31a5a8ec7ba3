#pragma once

#include <vector>

#include "core/engine/remote_image.h"
#include "core/model/data_index.h"
#include "core/model/layer_manifest.h"

namespace dsec::engine {

/// An image of a registry as a layer, and where in the layers of the image the layer's data lies.
struct ImageIndex {
  LayerManifest layer;             ///< the very one that an import of the image makes
  std::vector<DataIndex> indexes;  ///< one per image of the layer
  RemoteImage::Root image;         ///< the manifest of the image, for the platform that was chosen
};

}  // namespace dsec::engine
