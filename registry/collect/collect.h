#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/progress.h"
#include "registry/directory/three_fs.h"
#include "registry/registry_url.h"

namespace dsec::registry {

struct CollectOptions {
  bool dry_run = false;
  /// How long nothing must have named what goes: readers that found it before may still be at it.
  std::chrono::seconds grace{std::chrono::hours(12)};
  std::set<Digest> keep = {};  ///< layers that are kept without a tag: of dsec.lock files
  /// How long clients of 3FS may show an old tag.
  std::chrono::milliseconds settle = kThreeFsKnowsName + std::chrono::seconds(1);
};

struct CollectItem {
  enum class Kind { Layer, Blob, Lease, Index };
  Kind kind;
  std::string name;         ///< "base/debian 3f2c9d1e0a1b", a digest, path of a lease, digest of the blob of an index
  std::uint64_t bytes = 0;  ///< of a blob
};
/// "layer", "blob", "lease", "index".
std::string_view to_string(CollectItem::Kind kind);

struct CollectResult {
  std::vector<CollectItem> removed;  ///< in a dry run: would be
  std::vector<CollectItem> waiting;  ///< named by nothing, and not for long enough
  /// When the first of these may go.
  std::chrono::system_clock::time_point next{};
  std::uint64_t bytes = 0, waiting_bytes = 0;
  std::uint64_t layers = 0;           ///< that stay
  bool frees_itself = false;          ///< blobs go by the registry's own means
  std::vector<std::string> warnings;  ///< why nothing was removed, or what could not be
};

/// Removes from a registry what nothing names. Named are layers with a tag, those given as `keep`, what these were
/// built on and stand on, and what live publishers have announced. Any number of publishers, readers and others may
/// work meanwhile. Throws Error (Usage) where nothing can be removed from here.
CollectResult collect_registry(const RegistryAddress& address, const std::string& host_id,
                               const CollectOptions& options, Progress& progress);

}  // namespace dsec::registry
