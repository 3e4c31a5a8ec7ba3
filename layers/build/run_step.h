#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layers/build/builder.h"
#include "layers/build/stack_lookup.h"
#include "layers/build/step_mounts.h"
#include "layers/dir/scrub.h"
#include "layers/source.h"

namespace dsec::layers {

/// A `run` step and where it runs.
struct RunRequest {
  const LayerRecipe& recipe;
  std::string name;  ///< of the step, for messages: "step 3"
  const RunStep& step;
  const std::vector<engine::StoredLayer>& stack;  ///< bottom to top: `on` and the steps before
  const ImageConfig& settings;                    ///< of the steps before
  const Scrub& scrub;                             ///< what is taken away from what it wrote
  Digest key;
  const StepMounts* mounts = nullptr;  ///< null: none
};

/// Runs the command in a sandbox on the stack and hands what it wrote, scrubbed, to `make_layer`. Throws Error with the
/// last output when it fails; the whole output is kept in a log beside the cache. The sandbox is gone in the end.
engine::StoredLayer run_step(const RunRequest& request, StackLookup& below, const BuildOptions& options,
                             const BuildPorts& ports,
                             const std::function<engine::StoredLayer(Source&, SourceFacts)>& make_layer);

}  // namespace dsec::layers
