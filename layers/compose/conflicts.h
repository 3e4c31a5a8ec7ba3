#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/engine/layer_mounter.h"
#include "core/engine/layer_store.h"

namespace dsec::layers {

/// Where independent layers cannot be stacked without surprise: a directory over something else, or something else over
/// a directory. Not looked at: what one layer does within itself, deletions and opaque directories (they are meant), a
/// layer against what it was built on, and a snapshot against anything. Needs no root.
std::vector<engine::StackConflict> find_conflicts(engine::LayerStore& store,
                                                  std::span<const engine::StoredLayer> bottom_to_top);

/// A file of one layer that a later, independent one replaces or deletes.
struct HiddenFile {
  std::string path;          ///< bytes, relative
  std::string lower, upper;  ///< names of the two layers
  bool deleted = false;      ///< by a whiteout or an opaque directory, else replaced
};

/// For `dsec env check`: at most `limit` of them, in path order; a deleted directory counts once. Needs no root.
std::vector<HiddenFile> find_hidden_files(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top,
                                          std::size_t limit);

}  // namespace dsec::layers
