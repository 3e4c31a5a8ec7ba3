#pragma once

#include "core/base/progress.h"
#include "registry/registry_url.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

struct PullResult {
  engine::StoredLayer layer;
  std::uint64_t bytes_copied = 0;
  std::uint64_t bytes_present = 0;    ///< the store had them
  std::uint64_t bytes_in_place = 0;   ///< stay in the registry
  std::uint64_t bytes_on_demand = 0;  ///< come when they are read
};

/// What of a layer is copied: all of it, or what it takes to mount it, while the contents of files come when they are
/// read (man/dsec-loader.7.md).
enum class PullMode { Whole, OnDemand };

/// Copies a layer into the store, every digest verified while copying, and tags it as asked (a reference by digest gets
/// no tag). An in-place address keeps data blobs where they lie. Throws Error (Usage) that suggests near names when the
/// registry does not have it. A failure leaves nothing but whole blobs, which gc takes or a repeated pull uses.
PullResult pull(LocalStore& store, const LayerRef& ref, const RegistryAddress& address, Progress& progress,
                PullMode mode = PullMode::Whole);

/// Copies a blob that is loaded on demand wholly into the store, from the first of its registries that gives it.
void fetch_whole(LocalStore& store, const OnDemandBlob& blob, Progress& progress);

}  // namespace dsec::registry
