#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

/// One thing that is wrong in the store.
struct StoreProblem {
  std::string layer;  ///< name and short digest, or empty when it concerns none
  std::optional<Digest> blob;
  std::string what;  ///< "is missing", "has 12 bytes instead of 4096", "has other bytes: sha256:…"
};

struct VerifyResult {
  std::uint64_t layers = 0, blobs = 0, bytes = 0;  ///< looked at
  std::uint64_t on_demand = 0;                     ///< blobs that are not here, and so were not looked at
  std::vector<StoreProblem> problems;
};

/// Hashes the manifests and all blobs of the given layers (none given: of all layers, and every blob file), and
/// compares data with its chunk digests. What is loaded on demand is
/// verified when it is, and left out here. A damaged blob is marked, so that importing or pulling it again replaces it.
VerifyResult verify_store(LocalStore& store, std::span<const Digest> layers, Progress& progress);

}  // namespace dsec::registry
