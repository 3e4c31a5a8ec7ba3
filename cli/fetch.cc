#include "cli/fetch.h"

#include "cli/invocation.h"
#include "cli/wiring.h"
#include "registry/registries.h"

namespace dsec::cli {

std::vector<engine::StoredLayer> find_or_pull(Invocation& call, std::span<const LayerRef> refs,
                                              std::span<const std::string> registries, registry::PullMode mode) {
  const Config config = Config::load();
  std::vector<registry::RegistryAddress> addresses;
  for (const auto& name : registries) addresses.push_back(registry::find_registry(config, name));
  if (registries.empty())
    for (const RegistryEntry& entry : config.registries) addresses.push_back(registry::RegistryAddress::of(entry));
  std::vector<engine::StoredLayer> layers =
      registry::ensure_local(call.wiring().store(), refs, addresses, call.progress(), mode);
  return layers;
}

}  // namespace dsec::cli
