#include "cli/fetch.h"

#include "cli/command.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "registry/offline.h"
#include "registry/registries.h"

namespace dsec::cli {

std::vector<engine::StoredLayer> find_or_pull(Invocation& call, std::span<const LayerRef> refs,
                                              std::span<const std::string> registries, registry::PullMode mode,
                                              std::optional<bool> offline) {
  const Config config = Config::load();
  if (offline.value_or(config.offline.value_or(false))) {
    if (!registries.empty())
      throw usage_error("dsec works offline, and --registry names a registry to ask").hint("--offline=false");
    return registry::find_here(call.wiring().store(), refs);
  }
  std::vector<registry::RegistryAddress> addresses;
  for (const auto& name : registries) addresses.push_back(registry::find_registry(config, name));
  if (registries.empty())
    for (const RegistryEntry& entry : config.registries) addresses.push_back(registry::RegistryAddress::of(entry));
  std::vector<engine::StoredLayer> layers =
      registry::ensure_local(call.wiring().store(), refs, addresses, call.progress(), mode);
  return layers;
}

void declare_offline(Command& command, std::optional<bool>& offline) {
  command.flag("--offline", offline, "Ask no registry; tell all that is not here (default: as config.yaml says)");
}

bool is_offline(std::optional<bool> flag) { return flag.value_or(Config::load().offline.value_or(false)); }

}  // namespace dsec::cli
