#pragma once

#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/engine/layer_store.h"
#include "layers/build/project.h"
#include "layers/build/recipe_inputs.h"
#include "layers/source.h"

namespace dsec::layers {

/// What came of making a layer a second time.
struct Rebuilt {
  Digest digest;                         ///< of the manifest as it came out now
  std::vector<std::string> differences;  ///< one line each, "input commit: was 3f2c…, is 9a01…"; empty: the same layer
};

/// Makes the layer that `manifest` describes from its source again, with the same options, and compares. The store
/// keeps nothing of it. Throws Error when a comparison would say nothing: the layer was written by another version of
/// mkfs.erofs, or made by build steps or from another kind of source.
Rebuilt rebuild(engine::LayerStore& store, const LayerManifest& manifest, Source& source, Progress& progress);

/// The same for a layer that the steps of `recipe`, an entry of `project`, made: on the layer that it was built on
/// then, whatever the name means now. Steps that run commands need not do the same twice, and are refused.
Rebuilt rebuild_steps(engine::LayerStore& store, const LayerManifest& manifest, const Project& project,
                      const LayerRecipe& recipe, const InputOptions& options, Progress& progress);

}  // namespace dsec::layers
