#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/layer_store.h"
#include "layers/erofs_read/erofs_image.h"

namespace dsec::layers {

/// An inode of one of the images of a stack.
struct StackedInode {
  std::size_t image;  ///< index, bottom to top
  ErofsInode inode;
};

/// What a name shows in the composed tree.
struct MergedNode {
  /// Top to bottom. Of a directory: all that are merged into it; of anything else: one.
  std::vector<StackedInode> parts;
  /// The first thing below the last part, which the parts hide; or the whiteout that ended the merge.
  std::optional<StackedInode> below;
  /// The lowest part is an opaque directory: what is below was hidden on purpose.
  bool opaque = false;

  const StackedInode& top() const { return parts.front(); }
  bool is_directory() const { return top().inode.is_directory(); }
  bool is_whiteout() const { return top().inode.is_whiteout(); }
};

/// The tree that overlayfs would make of layers, read from their images without mounting anything. Not thread-safe.
class MergedTree {
 public:
  enum class Contents { No, Yes };
  /// Opens the images; with contents their data blobs too.
  MergedTree(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top, Contents contents);

  MergedNode root();
  /// The children of a merged directory by name; a whiteout is a node too.
  std::map<std::string, MergedNode> children(const MergedNode& directory);
  /// One of them, or nothing.
  std::optional<MergedNode> child(const MergedNode& directory, std::string_view name);
  /// The node at a path; empty when nothing shows there.
  std::optional<MergedNode> find(std::string_view path);

  ErofsImage& image(std::size_t index) { return images_[index].image; }
  /// Index of the layer that an image belongs to, bottom to top.
  std::size_t layer_of(std::size_t image) const { return images_[image].layer; }
  std::size_t image_count() const noexcept { return images_.size(); }
  std::span<const engine::StoredLayer> layers() const noexcept { return layers_; }
  std::string layer_name(std::size_t image) const { return layers_[layer_of(image)].manifest.name.str(); }
  /// The manifest's entry of an image, for its blobs.
  const LayerImage& manifest_of(std::size_t image) const { return *images_[image].manifest; }

  bool is_opaque(const StackedInode& directory);

 private:
  struct OpenImage {
    std::size_t layer;
    const LayerImage* manifest;
    ErofsImage image;
  };
  // Continues `node` downwards with the next thing of its name; false when nothing below matters any more.
  bool extend(MergedNode& node, StackedInode next);

  std::vector<engine::StoredLayer> layers_;
  std::vector<OpenImage> images_;
};

/// Visits a composed tree in pre-order, the root first. `visit` returns whether to look into a directory. Bounded like
/// walk() of one image.
void walk_merged(MergedTree& tree, const std::function<bool(const std::string& path, const MergedNode& node)>& visit);

}  // namespace dsec::layers
