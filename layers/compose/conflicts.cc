#include "layers/compose/conflicts.h"

#include "core/base/error.h"
#include "layers/compose/merged_tree.h"

namespace dsec::layers {
namespace {

using engine::StackConflict;
using engine::StoredLayer;

std::string a_kind(const ErofsInode& inode) {
  switch (inode.mode & 0170000) {
    case 0040000:
      return "a directory";
    case 0120000:
      return "a symlink";
    case 0100000:
      return "a file";
    default:
      return "a special file";
  }
}

// Whether `upper` was made without knowing `lower`.
bool independent(std::span<const StoredLayer> layers, std::size_t upper, std::size_t lower) {
  if (upper == lower || layers[upper].manifest.name.kind == LayerKind::Snapshot) return false;
  const auto& built_on = layers[upper].manifest.provenance.built_on;
  if (!built_on) return true;
  for (std::size_t i = lower; i < upper; ++i)
    if (layers[i].digest == *built_on) return false;
  return true;
}

// Several layers meet in it: only there can one hide something of another.
bool shared(const MergedTree& tree, const MergedNode& node) {
  for (const StackedInode& part : node.parts)
    if (tree.layer_of(part.image) != tree.layer_of(node.top().image)) return true;
  return false;
}

}  // namespace

std::vector<StackConflict> find_conflicts(engine::LayerStore& store, std::span<const StoredLayer> bottom_to_top) {
  std::vector<StackConflict> found;
  MergedTree tree(store, bottom_to_top, MergedTree::Contents::No);
  walk_merged(tree, [&](const std::string& path, const MergedNode& node) {
    if (node.below && !node.opaque && !node.is_whiteout() && !node.below->inode.is_whiteout()) {
      const StackedInode& upper = node.parts.back();
      const std::size_t upper_layer = tree.layer_of(upper.image), lower_layer = tree.layer_of(node.below->image);
      if (upper.inode.is_directory() != node.below->inode.is_directory() &&
          independent(tree.layers(), upper_layer, lower_layer))
        found.push_back({path, tree.layer_name(node.below->image), tree.layer_name(upper.image),
                         a_kind(upper.inode) + " over " + a_kind(node.below->inode)});
    }
    return shared(tree, node);
  });
  return found;
}

std::vector<HiddenFile> find_hidden_files(engine::LayerStore& store, std::span<const StoredLayer> bottom_to_top,
                                          std::size_t limit) {
  std::vector<HiddenFile> found;
  MergedTree tree(store, bottom_to_top, MergedTree::Contents::No);
  walk_merged(tree, [&](const std::string& path, const MergedNode& node) {
    if (found.size() >= limit) return false;
    const StackedInode& upper = node.parts.back();
    if (node.below && !node.below->inode.is_whiteout() &&
        independent(tree.layers(), tree.layer_of(upper.image), tree.layer_of(node.below->image)))
      found.push_back({path, tree.layer_name(node.below->image), tree.layer_name(upper.image),
                       node.is_whiteout() || (node.opaque && node.below->inode.is_directory())});
    return shared(tree, node);
  });
  return found;
}

}  // namespace dsec::layers
