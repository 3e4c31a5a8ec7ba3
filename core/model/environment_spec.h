#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/model/layer_ref.h"
#include "core/model/sandbox_spec.h"

namespace dsec {

/// What `network` of an environment or a build step says; presets are resolved when it runs.
struct NetworkWish {
  NetworkMode mode = NetworkMode::None;
  NetworkPlan plan;  ///< with Policy
  bool operator==(const NetworkWish&) const = default;
};

/// A base, at most one workspace and toolkits in order, with run settings: an entry of `environments` in dsec.yaml.
struct EnvironmentSpec {
  std::string name;  ///< without '/' and ':'
  LayerRef base;
  std::optional<LayerRef> workspace;
  std::vector<LayerRef> toolkits;
  std::string workdir, user, hostname;
  std::map<std::string, std::string> env;
  std::string backend = "container";
  Limits limits;
  std::vector<DeviceGrant> devices;
  std::optional<std::chrono::milliseconds> lifetime, idle, idle_pause;
  NetworkWish network;
  std::map<std::string, std::string> labels;
  bool accept_conflicts = false;

  /// Bottom to top.
  std::vector<LayerRef> layers() const;
  bool operator==(const EnvironmentSpec&) const = default;
};

/// A name that can stand for an environment: [a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}.
bool valid_environment_name(std::string_view name);

}  // namespace dsec
