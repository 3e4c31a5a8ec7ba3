#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/engine/layer_store.h"

namespace dsec::layers {

/// A path that two layers do not have in common.
struct LayerDifference {
  enum class Kind { Added, Deleted, Changed } kind;
  std::string path;  ///< bytes, relative; "" is the root
  /// Of a change, in this order: "type", "mode", "owner", "size", "content", "target", "device", "xattrs", "time".
  std::vector<std::string> reasons;
};

/// Visits what is in `to` but not in `from`, and the other way round, in pre-order. Contents are compared byte by byte;
/// those of compressed layers need root, because only a mount can read them.
void diff_layers(engine::LayerStore& store, const engine::StoredLayer& from, const engine::StoredLayer& to,
                 const std::function<void(const LayerDifference&)>& visit);

}  // namespace dsec::layers
