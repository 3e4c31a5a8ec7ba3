#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

/// What sandboxes hold, by id.
struct LeasedLayers {
  std::map<std::string, std::vector<Digest>> by_sandbox;
  /// Leases that cannot be read: what they hold is unknown, so nothing may be removed.
  std::vector<std::string> unreadable;

  /// Reads the leases that are not known yet, and forgets those that are gone. A lease's layers never change.
  void refresh(const std::filesystem::path& sandboxes);
};

/// What gc would keep and take, as of one moment.
struct Plan {
  std::set<Digest> kept_layers;
  std::vector<Digest> doomed_layers;
  struct DoomedBlob {
    Digest digest;
    std::uint64_t size;
  };
  std::vector<DoomedBlob> doomed_blobs;
  std::vector<std::int64_t> dead_sessions;
  std::vector<std::string> dead_locks;  ///< their files are gone
};

/// Reads the index; to be called within a transaction. `ignored` are ids of sandboxes that are being removed.
Plan make_plan(Database& index, const LeasedLayers& leases, const std::vector<std::string>& ignored);

}  // namespace dsec::registry
