#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/build/builder.h"
#include "layers/dockerfile/copy_origin.h"
#include "layers/source.h"

namespace dsec::layers {

/// A recipe whose `from` is `dockerfile:…`, and what its build needs from whoever builds layers.
struct DockerfileJob {
  const LayerRecipe& recipe;
  std::filesystem::path directory;  ///< where a relative DIR begins
  std::map<std::string, std::string> inputs;
  dockerfile::ContextOrigin& context;
  std::map<std::string, std::string> locked_images;  ///< digests of images, by their names among the inputs
  /// The layer that FROM or COPY --from means; empty when it is nowhere.
  std::function<std::optional<engine::StoredLayer>(const LayerRef&)> layer;
  /// Makes an untagged layer of what an instruction left.
  std::function<engine::StoredLayer(Source&, SourceFacts)> make_step;
};

struct DockerfileOutcome {
  engine::StoredLayer layer;  ///< untagged
  bool cached = false;        ///< nothing had to be done
  std::size_t steps = 0, cached_steps = 0;
};

/// Runs the instructions of the stages that the target needs, stages that do not depend on each other at the same time.
/// The layer is whole: the images of what it is FROM, and one of all that was changed. Throws Error naming file, line
/// and instruction.
DockerfileOutcome build_dockerfile(const DockerfileJob& job, const BuildOptions& options, const BuildPorts& ports);

/// What identifies Dockerfile and context, whatever they are FROM.
std::map<std::string, std::string> dockerfile_inputs(const LayerRecipe& recipe, const std::filesystem::path& directory,
                                                     dockerfile::ContextOrigin& context);
/// The build context; `cache` is where digests of its files are kept between builds, or empty.
std::shared_ptr<dockerfile::ContextOrigin> dockerfile_context(const LayerRecipe& recipe,
                                                              const std::filesystem::path& directory,
                                                              const std::filesystem::path& cache);

/// The layers that FROM, COPY --from and RUN --mount=from= of the needed stages name: `base/debian:12` as it stands,
/// `python:3.11` (or `docker.io/library/python:3.11`) as `base/python:3.11`.
std::vector<LayerRef> dockerfile_layers(const LayerRecipe& recipe, const std::filesystem::path& directory);

}  // namespace dsec::layers
