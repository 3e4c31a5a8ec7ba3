// Overlayfs merges a name from the top: the first layer that has it decides, unless that is a directory, which is
// merged with what lies below until a layer has a whiteout, something else than a directory, or an opaque directory
// there.
#include "layers/compose/merged_tree.h"

#include <fcntl.h>

#include <algorithm>
#include <deque>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kDepthLimit = 1024;

struct Level {
  std::map<std::string, MergedNode> children;
  std::map<std::string, MergedNode>::iterator next;
  std::size_t path_length;
};

}  // namespace

MergedTree::MergedTree(engine::LayerStore& store, std::span<const engine::StoredLayer> bottom_to_top, Contents contents)
    : layers_(bottom_to_top.begin(), bottom_to_top.end()) {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    attempt("cannot read layer " + quote(layers_[i].manifest.name.str()), [&] {
      for (const LayerImage& image : layers_[i].manifest.images) {
        const Digest& meta = image.blob(BlobRole::Meta).digest;
        UniqueFd data;
        if (const Blob* blob = image.find(BlobRole::Data); blob && contents == Contents::Yes)
          data = open_file(store.blob_path(blob->digest), O_RDONLY);
        images_.push_back(
            {i, &image, ErofsImage(open_file(store.blob_path(meta), O_RDONLY), std::move(data), meta.brief())});
      }
    });
}

bool MergedTree::is_opaque(const StackedInode& directory) {
  if (directory.inode.xattr_size == 0) return false;
  const auto xattrs = image(directory.image).xattrs(directory.inode);
  const auto found = xattrs.find("trusted.overlay.opaque");
  return found != xattrs.end() && found->second == "y";
}

bool MergedTree::extend(MergedNode& node, StackedInode next) {
  if (!node.parts.empty() && (!node.is_directory() || node.opaque || !next.inode.is_directory())) {
    node.below = std::move(next);
    return false;
  }
  node.opaque = next.inode.is_directory() && is_opaque(next);
  node.parts.push_back(std::move(next));
  return true;
}

MergedNode MergedTree::root() {
  if (images_.empty()) throw usage_error("there is no layer to look at");
  MergedNode node;
  for (std::size_t i = images_.size(); i-- > 0;)
    if (!extend(node, {i, images_[i].image.root()})) break;
  return node;
}

std::optional<MergedNode> MergedTree::child(const MergedNode& directory, std::string_view name) {
  MergedNode node;
  for (const StackedInode& part : directory.parts)
    if (auto inode = image(part.image).lookup(part.inode, name))
      if (!extend(node, {part.image, *inode})) break;
  if (node.parts.empty()) return std::nullopt;
  return node;
}

std::map<std::string, MergedNode> MergedTree::children(const MergedNode& directory) {
  std::map<std::string, MergedNode> nodes;
  std::map<std::string, bool> complete;
  for (const StackedInode& part : directory.parts) {
    ErofsImage& from = image(part.image);
    for (const ErofsDirEntry& entry : from.list(part.inode)) {
      bool& done = complete[entry.name];
      if (!done) done = !extend(nodes[entry.name], {part.image, from.inode(entry.nid)});
    }
  }
  return nodes;
}

std::optional<MergedNode> MergedTree::find(std::string_view path) {
  std::optional<MergedNode> node = root();
  while (node && !path.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    if (!node->is_directory()) return std::nullopt;
    node = child(*node, name);
  }
  if (node && node->is_whiteout()) return std::nullopt;
  return node;
}

void walk_merged(MergedTree& tree, const std::function<bool(const std::string&, const MergedNode&)>& visit) {
  if (tree.image_count() == 0) return;
  std::string path;
  std::deque<Level> levels;             // which never moves its elements: `next` may be the end of `children`
  std::uint64_t allowed = 0, used = 0;  // bytes of directories, which honest images use once
  for (std::size_t i = 0; i < tree.image_count(); ++i) allowed += tree.image(i).meta_size();
  const auto enter = [&](const MergedNode& node) {
    for (const StackedInode& part : node.parts) used += part.inode.size;
    if (used > allowed) throw failure("the layers are damaged: directories share blocks at " + quote(path));
    if (levels.size() >= kDepthLimit)
      throw failure("directory " + quote(path) + " is nested deeper than " + std::to_string(kDepthLimit));
    levels.push_back({tree.children(node), {}, path.size()});
    levels.back().next = levels.back().children.begin();
  };
  const MergedNode root = tree.root();
  if (visit(path, root)) enter(root);
  while (!levels.empty()) {
    Level& level = levels.back();
    path.resize(level.path_length);
    if (level.next == level.children.end()) {
      levels.pop_back();
      continue;
    }
    const auto& [name, node] = *level.next++;
    if (!path.empty()) path += '/';
    path += name;
    if (visit(path, node) && node.is_directory()) enter(node);
  }
}

}  // namespace dsec::layers
