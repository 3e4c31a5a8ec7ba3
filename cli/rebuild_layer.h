#pragma once

#include <optional>
#include <string>

#include "cli/project_flags.h"
#include "core/engine/layer_store.h"

namespace dsec::cli {

class Invocation;

/// Where the layer can be made from again.
struct RebuildFlags {
  std::optional<std::string> source;  ///< absent: what dsec.yaml says of the layer
  ProjectFlags project;
};

/// Makes the layer again and tells the differences; the exit code is 3 when there are any.
void rebuild_layer(const engine::StoredLayer& layer, const RebuildFlags& flags, Invocation& call);

}  // namespace dsec::cli
