#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "registry/store/local_store.h"

namespace dsec::registry {

struct GcItem {
  enum class Kind { Sandbox, Trajectory, Layer, Blob, Session, Lock, Leftover };
  Kind kind;
  std::string name;         ///< id, "base/debian 3f2c9d1e0a1b", digest, "of process 4711", path
  std::uint64_t bytes = 0;  ///< freed on disk
};
/// "sandbox", "trajectory", "layer", "blob", "session", "lock", "leftover".
std::string_view to_string(GcItem::Kind kind);

/// What gc needs of the rooms that own sandboxes and mounts; an absent function means that there is nothing of the
/// kind.
struct GcPorts {
  /// Removes what is left of each sandbox whose creator and keeper are dead, its directory included (in a dry run only
  /// looks), returns their ids, and adds to `warnings` what it could not remove: engine::sweep_sandboxes.
  std::function<std::vector<std::string>(bool dry_run, std::vector<std::string>& warnings)> reclaim_sandboxes;
  /// Removes the trajectories that are kept no longer (in a dry run only looks), and returns their ids and sizes.
  std::function<std::vector<GcItem>(bool dry_run, std::vector<std::string>& warnings)> expire_trajectories;
  /// Unmounts every layer image whose meta digest is not among those given; returns how many. Not called in a dry run.
  std::function<std::size_t(std::span<const Digest> needed)> unmount_unused;
};

struct GcResult {
  std::vector<GcItem> removed;  ///< in a dry run: would be
  std::uint64_t bytes = 0;
  std::size_t unmounted = 0;
  std::vector<std::string> warnings;  ///< what could not be removed, and why; the rest was done all the same
};

/// Removes what nothing names. Named are: tagged and pinned layers, layers of sandboxes (leases) and kept trajectories,
/// of registered dsec.lock files and what those were built on, and blobs held by live sessions. Safe while imports,
/// builds, sandboxes and other gcs run.
GcResult collect_garbage(LocalStore& store, const GcPorts& ports, bool dry_run);

}  // namespace dsec::registry
