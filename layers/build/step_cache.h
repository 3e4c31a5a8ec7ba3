#pragma once

#include <filesystem>
#include <optional>

#include "core/engine/layer_store.h"

namespace dsec::layers {

/// What build steps made, by the digest of everything that went into them: a file per entry in cache/build, which also
/// makes the store keep the layer. Safe for any number of processes.
class StepCache {
 public:
  StepCache(std::filesystem::path directory, engine::LayerStore& store);

  /// Empty when there is no such entry or its layer is gone.
  std::optional<engine::StoredLayer> find(const Digest& key);
  void put(const Digest& key, const engine::StoredLayer& layer);
  /// Of a directory whose entries nobody is to use again.
  static void forget_all(const std::filesystem::path& directory);

 private:
  std::filesystem::path file(const Digest& key) const;
  void forget_old_entries() const;

  std::filesystem::path directory_;
  engine::LayerStore& store_;
};

}  // namespace dsec::layers
