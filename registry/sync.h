#pragma once

#include <filesystem>
#include <span>

#include "core/model/lock.h"
#include "registry/publish.h"

namespace dsec::registry {

/// Copies layers from one registry to another, not through the store: to a directory straight from the other registry,
/// elsewhere from a file, since what is sent there may have to be sent again; a blob that no directory of this host has
/// comes to a temporary one in `spool` for that. Digests are verified on the way. Layers keep the tags they are named
/// by; those that a lock pins keep the lock's tags that mean them in the registry. Nothing named: every layer, with all
/// tags. Repeating it copies what is missing. Throws Error (Usage) naming everything that `from` does not have.
PublishResult sync_registries(const RegistryAddress& from, const RegistryAddress& to, std::span<const LayerRef> refs,
                              std::span<const Lock> locks, const engine::Home& home, Progress& progress);

}  // namespace dsec::registry
