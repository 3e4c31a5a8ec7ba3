#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/model/layer_ref.h"
#include "core/model/sandbox_spec.h"

namespace dsec {

/// What a network policy of an environment asks for. Only "none" and "host" can be run; a policy that parses but cannot
/// be honoured yet is refused by name when the environment is run.
struct NetworkWish {
  std::optional<NetworkMode> mode;            ///< set when the whole policy is "none" or "host"
  std::vector<std::string> allow;             ///< presets, host names, CIDRs
  std::map<std::string, std::string> phases;  ///< phase to policy
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
