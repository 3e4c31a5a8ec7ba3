#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/engine/layer_store.h"
#include "core/model/environment_spec.h"
#include "core/model/sandbox_spec.h"

namespace dsec::engine {

/// One config of a stack of layers: the environment by name, workdir, user and stop signal by the topmost layer that
/// says something. A layer with an entrypoint of its own drops the command of those below, as an image build does. What
/// no layer says of PATH, TZ and LANG is as fixed for all sandboxes.
ImageConfig merge_configs(std::span<const ImageConfig> bottom_to_top);

/// What a person or a client asks for, over what the layers say.
struct SandboxRequest {
  std::vector<LayerRef> layers;  ///< in any order: kinds decide, then the order given; for the caller to find
  /// All but its layers. Of its config, what is not empty overrides the layers'.
  SandboxSpec settings;
  /// Replaces the layers' entrypoint and drops their command; an empty list: none.
  std::optional<std::vector<std::string>> entrypoint;
};

/// An environment of dsec.yaml on the layers that its references were resolved to.
SandboxRequest request_of(const EnvironmentSpec& environment, std::vector<LayerRef> layers);

/// The layers, with those that snapshots among them stand on, which `get` finds or throws Error.
std::vector<StoredLayer> with_lowers(const std::function<StoredLayer(const LayerRef&)>& get,
                                     std::vector<StoredLayer> layers);
std::vector<StoredLayer> with_lowers(LayerStore& store, std::vector<StoredLayer> layers);

/// What a sandbox of these layers is made from. Throws Error (Usage) for a stack that is no environment (one base, at
/// most one workspace) and for layers of different platforms.
SandboxSpec compose_spec(std::vector<StoredLayer> layers, const SandboxRequest& request);

/// What the main command is when a person gives `args`: they replace the config's command, not its entrypoint. Throws
/// Error (Usage) when nothing is left to run.
std::vector<std::string> main_command(const ImageConfig& config, std::span<const std::string> args);

/// "NAME" of "NAME=value"; throws Error (Usage) when there is no name.
std::string variable_name(std::string_view assignment);

/// Sets or replaces one "NAME=value".
void set_variable(std::vector<std::string>& env, const std::string& assignment);

}  // namespace dsec::engine
