#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/layer_store.h"
#include "core/model/layer_ref.h"
#include "layers/erofs_read/erofs_image.h"
#include "layers/source.h"

namespace dsec::layers {

/// Whether contents are to be read: of a layer that is loaded on demand all of them have to come for that.
enum class ImageData { Wanted, Unwanted };
/// The images of a layer, opened for reading, bottom to top.
std::vector<ErofsImage> open_images(const engine::StoredLayer& layer, engine::LayerStore& store, ImageData data);

/// A layer and all that it was built on, bottom to top, each of them got by `get`.
std::vector<engine::StoredLayer> stack_up_to(const LayerRef& top,
                                             const std::function<engine::StoredLayer(const LayerRef&)>& get);

/// Answers what an overlay of layers would show, without mounting anything.
class StackLookup {
 public:
  StackLookup(std::span<const engine::StoredLayer> bottom_to_top, engine::LayerStore& store);
  struct Found {
    ErofsInode inode;
    std::string target;  ///< of a symlink
  };
  /// What the composed tree has at `path` (not following symlinks).
  std::optional<Found> find(std::string_view path);
  bool has(std::string_view path) { return find(path).has_value(); }

 private:
  std::vector<ErofsImage> images_;  // bottom to top
};

/// Passes a tree on, but for deletions that delete nothing: whiteouts and opaque marks over a path that the layers
/// below do not have. overlayfs lists such whiteouts, and makes every new directory opaque, which would hide another
/// layer's files there.
class NeededDeletions final : public TreeSink {
 public:
  NeededDeletions(TreeSink& under, StackLookup& below) : under_(under), below_(below) {}
  void entry(const Entry& entry) override;
  void data(std::string_view bytes) override { under_.data(bytes); }

 private:
  TreeSink& under_;
  StackLookup& below_;
};

bool is_whiteout(const Entry& entry);
bool is_opaque(const Entry& entry);

}  // namespace dsec::layers
