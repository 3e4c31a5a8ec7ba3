#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

struct LayerUse {
  Digest digest;
  std::string name;
  std::vector<std::string> tags;
  std::uint64_t bytes = 0;      ///< of all its blobs
  std::uint64_t exclusive = 0;  ///< of those that no other layer has: what removing it would free
  std::uint64_t shared = 0;
  std::uint64_t in_place = 0;        ///< of those that lie in a registry, not counted above
  std::uint64_t on_demand = 0;       ///< of those that are loaded while they are used, not counted above
  std::uint64_t on_demand_here = 0;  ///< what of these the cache has
  bool reclaimable = false;          ///< gc would take it
};

struct SandboxUse {
  std::string id;
  std::uint64_t bytes = 0;  ///< allocated, of everything below sandboxes/<id>: the writable layer and output
};

struct DiskUse {
  std::vector<LayerUse> layers;
  std::vector<SandboxUse> sandboxes;
  std::uint64_t layers_bytes = 0;  ///< of all blobs, each once
  std::uint64_t cache_bytes = 0;   ///< allocated below cache/
  std::uint64_t sandboxes_bytes = 0;
  std::uint64_t index_bytes = 0;        ///< of index.db, its log, and the space set aside for it
  std::uint64_t reclaimable_bytes = 0;  ///< of layers, blobs and temporary files that gc would take
};

/// What `dsec system df` shows.
DiskUse disk_use(LocalStore& store);

}  // namespace dsec::registry
