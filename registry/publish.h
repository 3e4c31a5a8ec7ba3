#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "core/base/progress.h"
#include "registry/layout/prefetch_list.h"
#include "registry/registry_url.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

struct PublishOptions {
  bool verify_existing = false;  ///< also hash blobs that the registry has already, not only look at their size
};

struct PublishedLayer {
  std::string ref;  ///< as asked for
  Digest digest;
  std::uint64_t bytes = 0;         ///< of all its blobs
  std::uint64_t bytes_copied = 0;  ///< of those that were not there
};

struct PublishResult {
  std::vector<PublishedLayer> layers;
  std::uint64_t bytes_copied = 0, bytes_present = 0;
  std::chrono::milliseconds duration{};
};

/// Copies layers of the store into a registry, which is made when it is a directory that is missing or empty: blobs,
/// then the manifest, then the tag (a layer named by digest gets none). Repeating it copies only what is missing. Any
/// number of publishers may do so at once; of two that set the same tag the last wins.
PublishResult publish(LocalStore& store, std::span<const LayerRef> refs, const RegistryAddress& address,
                      const PublishOptions& options, Progress& progress);

/// Throws Error when the registry is not there or cannot be published to.
void require_publishable(LocalStore& store, const RegistryAddress& address, Progress& progress);
/// Puts the list beside its layer, which the store has, in place of one that is there; false when the registry does not
/// have the layer.
bool publish_prefetch_list(LocalStore& store, const PrefetchList& list, const RegistryAddress& address,
                           Progress& progress);

}  // namespace dsec::registry
