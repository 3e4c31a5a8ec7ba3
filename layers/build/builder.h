#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/engine/local_engine.h"
#include "core/engine/remote_image.h"
#include "core/model/lock.h"
#include "layers/build/build_secret.h"
#include "layers/build/project.h"

namespace dsec::layers {

struct BuildOptions {
  std::vector<std::string> targets;  ///< layers ("kind/name[:tag]") or environments; empty: everything
  bool no_cache = false;             ///< make every step and layer again
  bool offline = false;              ///< refuse sources and steps that need a network
  bool locked = false;               ///< refuse a result that dsec.lock does not pin
  bool pull = false;                 ///< ask registries whether the tags that Dockerfiles are FROM have moved
  std::map<std::string, BuildSecret> secrets = {};  ///< of RUN --mount=type=secret, by id
  std::size_t jobs = 2;                             ///< layers built at the same time
  /// Called with the sandbox in which a step failed, before it is removed.
  std::function<void(engine::Engine& engine, const std::string& id, const ExecSpec& failed)> on_failure;
};

struct BuildOutcome {
  enum class Kind { Built, Cached };
  std::string ref;
  engine::StoredLayer layer;
  Kind kind = Kind::Built;
  std::size_t steps = 0, cached_steps = 0;
  std::chrono::milliseconds duration{};
};

/// What a build needs from the rest of dsec. Nothing of the engine is touched unless a `run` step has to run.
struct BuildPorts {
  engine::LayerStore& store;
  std::function<engine::LocalEngine&()> engine;
  std::filesystem::path cache;  ///< cache/build of the home
  Progress& progress;
  /// Brings a layer that is made elsewhere into the store, from wherever it can; empty: it has to be there.
  std::function<void(const LayerRef& ref)> pull = {};
  /// Images of registries; empty: sources that are such are refused.
  engine::OpenRemoteImage images = {};
};

/// Makes what `options.targets` name, and what that stands on, in the order of their dependencies; layers that do not
/// depend on each other at the same time. A layer whose sources and recipe did not change is taken from the cache.
/// Throws Error for the first failure, after layers under way have ended.
std::vector<BuildOutcome> build(const Project& project, const BuildOptions& options, const BuildPorts& ports);

/// Makes the layer of one recipe that stands in no file; paths in it begin at `directory`. Writes no lock.
BuildOutcome build_one(const LayerRecipe& recipe, const std::filesystem::path& directory, const BuildOptions& options,
                       const BuildPorts& ports);

}  // namespace dsec::layers
