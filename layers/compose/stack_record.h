#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/engine/layer_store.h"

namespace dsec::layers {

/// What is known of a stack of layers, whatever host asks.
struct StackRecord {
  std::string key;                  ///< 64 hex digits, of the digests of the layers in order
  std::vector<std::string> images;  ///< hex digests of all meta blobs, bottom to top
  std::size_t conflicts = 0;
  /// The image of directories whose attributes are restored on top; absent when none is needed.
  std::optional<std::filesystem::path> fixup;
};

/// Keeps what was found out about stacks in DSEC_HOME/cache: stacks/<key>.json and fixup/<key>. Both are made anew when
/// they are missing or damaged. Thread-safe, and any number of processes may use the same folder.
class StackRecords {
 public:
  StackRecords(std::filesystem::path cache, engine::LayerStore& store);

  /// From memory, else from disk, else found out.
  std::shared_ptr<const StackRecord> of(std::span<const engine::StoredLayer> bottom_to_top);
  /// Found out once more, because a file of it is gone.
  std::shared_ptr<const StackRecord> again(std::span<const engine::StoredLayer> bottom_to_top);
  /// The images that the stack of `key` is made of; empty when nothing is known of it.
  std::vector<std::string> images_of(const std::string& key);
  /// Removes what nobody asked for in the last 30 days.
  void remove_old();

 private:
  std::filesystem::path record_path(const std::string& key) const { return cache_ / "stacks" / (key + ".json"); }
  std::filesystem::path fixup_path(const std::string& key) const { return cache_ / "fixup" / key; }
  std::shared_ptr<const StackRecord> remember(StackRecord record);
  std::optional<StackRecord> load(const std::string& key) const;
  StackRecord make(const std::string& key, std::span<const engine::StoredLayer> bottom_to_top);

  std::filesystem::path cache_;
  engine::LayerStore& store_;
  std::mutex mutex_;  ///< of known_
  std::unordered_map<std::string, std::shared_ptr<const StackRecord>> known_;
};

}  // namespace dsec::layers
