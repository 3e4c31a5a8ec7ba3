// What of the tree becomes an image: all of it, or what changed since the images below.

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "layers/archive/layer_tree.h"
#include "layers/archive/layer_tree_node.h"

namespace dsec::layers {

void LayerTree::collect(const Node& node, std::string& path, std::vector<ImageEntry>& out) const {
  const std::size_t own = out.size();
  // What was deleted may leave a directory empty that only its entries implied; it stays.
  const bool left_empty = node.children.empty() && !path.empty();
  const bool listed = !node.implicit || node.opaque || left_empty;
  if (listed) out.push_back({path, node.inode, {}, node.opaque});
  const std::size_t length = path.size();
  const auto enter = [&](const std::string& name) {
    if (!path.empty()) path += '/';
    path += name;
  };
  if (!node.opaque) {
    for (const auto& [name, filled] : node.hidden) {
      if (node.children.contains(name)) continue;
      enter(name);
      out.push_back({path, nullptr, {}, false});
      path.resize(length);
    }
  }
  for (const auto& [name, child] : node.children) {
    enter(name);
    if (child->is_directory()) {
      const std::size_t at = out.size();
      collect(*child, path, out);
      const auto hidden = node.hidden.find(name);
      if (!node.opaque && hidden != node.hidden.end()) {
        // A directory made anew where the images below have something else: it must not take that one's attributes, nor
        // what lies in it.
        if (out.size() == at || out[at].path != path)
          out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), ImageEntry{path, child->inode, {}, false});
        out[at].opaque |= hidden->second;
      }
    } else if (child->changed) {
      out.push_back({path, child->inode, {}, false});
    }
    path.resize(length);
  }
  if (listed && !node.changed && !node.opaque && out.size() == own + 1) out.pop_back();
}

void LayerTree::settle(Node& node) {
  node.below = true;
  node.changed = node.opaque = false;
  node.hidden.clear();
  for (auto& [name, child] : node.children) settle(*child);
}

std::vector<ImageEntry> LayerTree::end_image() {
  std::vector<ImageEntry> entries;
  std::string path;
  collect(*root_, path, entries);
  settle(*root_);
  image_has_entries_ = false;

  // Directories first, in the order of their paths, then files in the order in which they lie in the archives, so that
  // a packed archive is read once, then further names of files.
  std::unordered_map<const Inode*, const std::string*> first_name;
  for (ImageEntry& entry : entries) {
    if (!entry.inode || entry.inode->entry.type == EntryType::Directory) continue;
    const auto [known, is_new] = first_name.emplace(entry.inode.get(), &entry.path);
    if (!is_new) entry.link_to = *known->second;
  }
  const auto rank = [](const ImageEntry& entry) {
    if (entry.inode && entry.inode->entry.type == EntryType::Directory) return 0;
    return entry.link_to.empty() ? 1 : 2;
  };
  const auto position = [](const ImageEntry& entry) {
    if (!entry.inode || entry.inode->segments.empty()) return std::pair<std::uint32_t, std::uint64_t>(0, 0);
    return std::pair<std::uint32_t, std::uint64_t>(entry.inode->layer, entry.inode->segments.front().offset);
  };
  std::stable_sort(entries.begin(), entries.end(), [&](const ImageEntry& a, const ImageEntry& b) {
    const int rank_a = rank(a), rank_b = rank(b);
    if (rank_a != rank_b) return rank_a < rank_b;
    return rank_a == 1 && position(a) < position(b);
  });
  return entries;
}

}  // namespace dsec::layers
