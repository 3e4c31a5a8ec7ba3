#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

/// What sandboxes and trajectories hold, by id.
struct LeasedLayers {
  std::map<std::string, std::vector<Digest>> by_sandbox, by_trajectory;
  /// Leases that cannot be read: what they hold is unknown, so nothing may be removed.
  std::vector<std::string> unreadable;
  /// A replay of these may lack layers.
  std::vector<std::string> unreadable_trajectories;

  /// Reads the leases that are not known yet, and forgets those that are gone. The layers of a lease or a trajectory
  /// never change.
  void refresh(const engine::Home& home);
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

/// Ids of what is being removed.
struct Ignored {
  std::set<std::string> sandboxes, trajectories;
};

/// Reads the index; to be called within a transaction.
Plan make_plan(Database& index, const LeasedLayers& leases, const Ignored& ignored);

}  // namespace dsec::registry
