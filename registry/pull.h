#pragma once

#include "core/base/progress.h"
#include "registry/registry_url.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

struct PullResult {
  engine::StoredLayer layer;
  std::uint64_t bytes_copied = 0;
  std::uint64_t bytes_present = 0;   ///< the store had them
  std::uint64_t bytes_in_place = 0;  ///< stay in the registry
};

/// Copies a layer into the store, every digest verified while copying, and tags it as asked (a reference by digest gets
/// no tag). An in-place address keeps data blobs where they lie. Throws Error (Usage) that suggests near names when the
/// registry does not have it. A failure leaves nothing but whole blobs, which gc takes or a repeated pull uses.
PullResult pull(LocalStore& store, const LayerRef& ref, const RegistryAddress& address, Progress& progress);

}  // namespace dsec::registry
