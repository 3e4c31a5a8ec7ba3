#pragma once

#include <string>

#include "registry/pull.h"
#include "registry/registry_url.h"

namespace dsec::cli {

class Command;

/// One option that takes a registry.
struct RegistryFlag {
  std::string name, text;
  bool allow_any_fs = false;
};

/// `name`: "--to" or "--from".
void declare(Command& command, const std::string& name, const std::string& help, RegistryFlag& flag);

/// --from beside a --to that brings --allow-any-fs.
void declare_source(Command& command, const std::string& help, RegistryFlag& flag);

/// By name or URL. Throws Error (Usage), also when the flag was not given and no single registry is configured.
registry::RegistryAddress find(const RegistryFlag& flag);

/// --on-demand; pull_mode() also looks at the configuration.
void declare_on_demand(Command& command, bool& on_demand);
registry::PullMode pull_mode(bool on_demand);

}  // namespace dsec::cli
