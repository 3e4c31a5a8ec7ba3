#include "layers/compose/listing.h"

#include "layers/compose/merged_tree.h"

namespace dsec::layers {

void list_files(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top,
                const std::function<void(const ListedFile&)>& visit) {
  MergedTree tree(store, bottom_to_top, MergedTree::Contents::No);
  walk_merged(tree, [&](const std::string& path, const MergedNode& node) {
    const StackedInode& top = node.top();
    visit({to_entry(tree.image(top.image), path, top.inode), tree.layer_name(top.image)});
    return true;
  });
}

}  // namespace dsec::layers
