#pragma once

#include <chrono>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

/// Records that a registry has a layer of the store.
void note_source(LocalStore& store, const Digest& layer, const BlobOrigin& origin);
/// The registries that are known to have had each layer.
std::map<Digest, std::vector<BlobOrigin>> layer_sources(Database& index);

/// A pinned layer stays, and its data stays here. Throws Error when the store does not have it.
void pin(LocalStore& store, const Digest& layer);
/// False when it was not pinned.
bool unpin(LocalStore& store, const Digest& layer);
std::set<Digest> pinned_layers(Database& index);

/// When layers were last used is the time of empty files, store/used/<digest>: nothing that has to be written durably.
/// note_use() writes at most once in an hour for each; what fails is no error.
void note_use(const engine::Home& home, std::span<const Digest> layers) noexcept;
/// Empty when it never was.
std::optional<std::chrono::system_clock::time_point> last_use(const engine::Home& home, const Digest& layer);
/// Removes the files of layers that are not among `known`.
void forget_use(const engine::Home& home, const std::set<Digest>& known);

}  // namespace dsec::registry
