#pragma once

#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/engine/layer_store.h"
#include "layers/source.h"

namespace dsec::layers {

/// What came of making a layer a second time.
struct Rebuilt {
  Digest digest;                         ///< of the manifest as it came out now
  std::vector<std::string> differences;  ///< one line each, "input commit: was 3f2c…, is 9a01…"; empty: the same layer
};

/// Makes the layer that `manifest` describes from its source again, with the same options, and compares. The store
/// keeps nothing of it. Throws Error when a comparison would say nothing: the layer has build steps, whose commands
/// need not do the same twice, or was written by another version of mkfs.erofs, or comes of another kind of source.
Rebuilt rebuild(engine::LayerStore& store, const LayerManifest& manifest, Source& source, Progress& progress);

}  // namespace dsec::layers
