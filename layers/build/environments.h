#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/layer_mounter.h"
#include "core/engine/layer_store.h"
#include "core/model/lock.h"
#include "layers/build/project.h"

namespace dsec::layers {

/// A reference without a tag means the project's layer of that name, whatever its tag.
LayerRef actual_ref(const Project& project, const LayerRef& ref);

/// Beside the project's file and named as it is: dsec.lock of dsec.yaml.
std::filesystem::path lock_path(const Project& project);
/// Empty when there is none. Of the file itself, where its ${NAME} are to take values from the lock.
std::optional<Lock> read_lock(const Project& project);
std::optional<Lock> read_lock(const std::filesystem::path& project_file);

/// What is pinned when a layer that the lock should name is not in the store.
enum class WhenMissing { Refuse, KeepOld };
/// Pins every layer of the project and of its environments to what the store has under their names now; throws Error
/// naming all that are missing.
Lock make_lock(const Project& project, engine::LayerStore& store, WhenMissing when = WhenMissing::Refuse,
               const std::optional<Lock>& old = std::nullopt);
/// Writes it and lets the store keep what it names.
void write_lock(const Project& project, const Lock& lock, engine::LayerStore& store);

/// Throws Error (Usage) with near names when there is no such environment.
const EnvironmentSpec& environment_of(const Project& project, std::string_view name);
/// Its layers, bottom to top: those that `lock` pins, or else those that the names mean. Throws Error (Usage) when the
/// lock was made of another environment of that name.
std::vector<LayerRef> layers_of(const Project& project, const std::optional<Lock>& lock, const EnvironmentSpec& spec);

/// An environment with its layers, bottom to top: those that `lock` pins, or without one those that the names mean now.
struct ResolvedEnvironment {
  EnvironmentSpec spec;
  std::vector<engine::StoredLayer> layers;
};
/// Throws Error (Usage) with near names when there is no such environment, and naming what has to be built or pulled
/// when a layer is missing.
ResolvedEnvironment resolve_environment(const Project& project, const std::optional<Lock>& lock, std::string_view name,
                                        engine::LayerStore& store);

/// Something that is not as the lock, or as the layers' makers, had it.
struct EnvironmentFinding {
  enum class Kind {
    Missing,   ///< a layer is not in the store
    Changed,   ///< dsec.yaml differs from what the lock was made from
    Moved,     ///< a tag means another layer now
    Drift,     ///< a layer was built on another base than it is stacked on
    Conflict,  ///< the layers cannot be stacked
    Hides,     ///< a layer replaces or deletes a file of another: worth knowing, and nothing wrong
  };
  Kind kind;
  std::string subject;  ///< an environment's name or a layer's reference
  std::string text;
};
std::string_view to_string(EnvironmentFinding::Kind kind);

/// What `dsec env check` reports, of one environment or (empty name) of all.
std::vector<EnvironmentFinding> check_environments(const Project& project, const std::optional<Lock>& lock,
                                                   std::string_view name, engine::LayerStore& store,
                                                   engine::LayerMounter& mounter);

/// Layers of the stack that were built on another layer than the one below them, as sentences.
std::vector<std::string> built_on_drift(std::span<const engine::StoredLayer> bottom_to_top);
/// The same of every environment of the project whose layers are all there, each sentence after the environment's name.
std::vector<std::string> built_on_drift(const Project& project, engine::LayerStore& store);

}  // namespace dsec::layers
