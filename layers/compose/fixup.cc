#include "layers/compose/fixup.h"

#include <optional>
#include <set>

#include "layers/compose/merged_tree.h"

namespace dsec::layers {
namespace {

using Paths = std::set<std::string>;

class Fixups {
 public:
  Fixups(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top)
      : tree_(store, bottom_to_top, MergedTree::Contents::No) {
    for (const engine::StoredLayer& layer : bottom_to_top)
      implicit_.emplace_back(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end());
  }

  std::map<std::string, Entry> find() {
    std::map<std::string, Entry> wrong;
    // The lowest layer has nothing below it that it could spoil.
    for (std::size_t layer = 1; layer < implicit_.size(); ++layer)
      for (const std::string& path : implicit_[layer])
        if (auto right = restored(path)) wrong.emplace(path, std::move(*right));
    if (wrong.empty()) return wrong;
    Paths parents = {""};
    for (const auto& [path, entry] : wrong)
      for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1))
        parents.insert(path.substr(0, slash));
    for (const std::string& path : parents)
      if (!wrong.contains(path)) wrong.emplace(path, shown(path, tree_.find(path)->top()));
    return wrong;
  }

 private:
  // The attributes that `path` should have, when it shows others.
  std::optional<Entry> restored(const std::string& path) {
    const auto node = tree_.find(path);
    if (!node || !node->is_directory()) return std::nullopt;
    for (const StackedInode& part : node->parts) {
      if (implicit_[tree_.layer_of(part.image)].contains(path)) continue;
      Entry right = shown(path, part), now = shown(path, node->top());
      const bool same = right.mode == now.mode && right.uid == now.uid && right.gid == now.gid &&
                        right.mtime == now.mtime && right.xattrs == now.xattrs;
      return same ? std::nullopt : std::optional(std::move(right));
    }
    return std::nullopt;
  }

  // What overlayfs itself reads from xattrs concerns the layer they are in.
  Entry shown(const std::string& path, const StackedInode& part) {
    Entry entry = to_entry(tree_.image(part.image), path, part.inode);
    std::erase_if(entry.xattrs, [](const auto& xattr) { return xattr.first.starts_with("trusted.overlay."); });
    return entry;
  }

  MergedTree tree_;
  std::vector<Paths> implicit_;
};

}  // namespace

std::map<std::string, Entry> find_fixups(engine::LayerStore& store,
                                         std::span<const engine::StoredLayer> bottom_to_top) {
  return Fixups(store, bottom_to_top).find();
}

}  // namespace dsec::layers
