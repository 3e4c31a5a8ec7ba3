#pragma once

#include <functional>
#include <span>

#include "core/engine/layer_store.h"
#include "layers/source.h"

namespace dsec::layers {

/// One line of `dsec layer files`.
struct ListedFile {
  Entry entry;       ///< a character device 0:0 is a deletion; hard links are shown as files
  std::string uses;  ///< name of the layer it comes from
};

/// Visits what the composed layers show, in pre-order, names bytewise; deletions are shown too. Needs no root and
/// mounts nothing.
void list_files(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top,
                const std::function<void(const ListedFile&)>& visit);

}  // namespace dsec::layers
