#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/engine/layer_store.h"
#include "registry/pull.h"

namespace dsec::cli {

class Command;
class Invocation;

/// The layers from the store. What is not there is pulled first: from the registries given by name or URL, or else from
/// all that are configured, in order.
std::vector<engine::StoredLayer> find_or_pull(Invocation& call, std::span<const LayerRef> refs,
                                              std::span<const std::string> registries,
                                              registry::PullMode mode = registry::PullMode::Whole,
                                              std::optional<bool> offline = {});

/// --offline; is_offline() also looks at the configuration. What is not here is told then, all of it, and not fetched.
void declare_offline(Command& command, std::optional<bool>& offline);
bool is_offline(std::optional<bool> flag);

}  // namespace dsec::cli
