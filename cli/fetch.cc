#include "cli/fetch.h"

#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "registry/store/local_store.h"

namespace dsec::cli {

std::vector<engine::StoredLayer> find_or_pull(Invocation& call, std::span<const LayerRef> refs,
                                              std::span<const std::string> registries) {
  if (!registries.empty()) throw usage_error("layers cannot be pulled yet").hint("leave --registry out");
  std::vector<engine::StoredLayer> layers;
  for (const LayerRef& ref : refs) layers.push_back(call.wiring().store().get(ref));
  return layers;
}

}  // namespace dsec::cli
