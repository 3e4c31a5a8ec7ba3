#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "registry/gc/roots.h"

namespace dsec::registry {

/// Why the data of a layer has to be here, the strongest reason first; None: it may be evicted. A kept trajectory is no
/// reason: its layers stay known by their digests, and a replay brings their data again.
enum class Hold { Sandbox, Session, Pin, Lock, BuildCache, OnlyHere, OneBlob, None };
/// "sandbox", "session", "pinned", "lock", "build-cache", "only-here", "compressed", "".
std::string_view to_string(Hold hold);

/// A layer with what matters for keeping its data here.
struct WorkingLayer {
  engine::StoredLayer layer;
  Hold hold = Hold::None;
  std::string holder = {};  ///< id of a sandbox, path of a lock; empty for the rest
  bool pinned = false;
  std::chrono::system_clock::time_point last_used = {};  ///< at the latest when it was added
  std::vector<BlobOrigin> sources = {};                  ///< registries that are known to have had it
  std::uint64_t bytes = 0;                               ///< of its blobs that are files of the store
  std::uint64_t shared = 0;                              ///< of those that another layer has, too
  std::uint64_t away = 0;                                ///< of data that comes when it is read
  std::uint64_t cached = 0;                              ///< of this, what the cache of chunks has
};

/// All layers of the store, the one that was used longest ago first.
std::vector<WorkingLayer> working_layers(LocalStore& store, const LeasedLayers& leases);

/// Bytes of a blob's file in the store; empty when it is none of its files.
std::optional<std::uint64_t> stored_bytes(const LocalStore& store, const Digest& blob);

}  // namespace dsec::registry
