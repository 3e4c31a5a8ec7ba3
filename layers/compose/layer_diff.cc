#include "layers/compose/layer_diff.h"

#include <cstring>
#include <memory>
#include <optional>

#include "core/base/error.h"
#include "layers/compose/contents.h"
#include "layers/compose/merged_tree.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 256 << 10;  // bytes compared at a time
constexpr std::size_t kDepthLimit = 1024;

// One of the two layers.
struct Side {
  Side(engine::LayerStore& store, const engine::StoredLayer& layer)
      : tree(store, std::span(&layer, 1), MergedTree::Contents::Yes), contents(store, tree) {}
  Entry entry(const std::string& path, const MergedNode& node) {
    return to_entry(tree.image(node.top().image), path, node.top().inode);
  }
  MergedTree tree;
  Contents contents;
};

class Comparison {
 public:
  Comparison(engine::LayerStore& store, const engine::StoredLayer& from, const engine::StoredLayer& to,
             const std::function<void(const LayerDifference&)>& visit)
      : from_(store, from), to_(store, to), visit_(visit) {}

  void run() { compare("", from_.tree.root(), to_.tree.root(), 0); }

 private:
  void compare(const std::string& path, const MergedNode& from, const MergedNode& to, std::size_t depth) {
    if (depth > kDepthLimit) throw failure("directory " + quote(path) + " is nested too deep");
    if (std::vector<std::string> reasons = reasons_of(path, from, to); !reasons.empty())
      visit_({LayerDifference::Kind::Changed, path, std::move(reasons)});
    const auto children = [](Side& side, const MergedNode& node) {
      return node.is_directory() ? side.tree.children(node) : std::map<std::string, MergedNode>();
    };
    const auto left = children(from_, from), right = children(to_, to);
    auto l = left.begin();
    auto r = right.begin();
    while (l != left.end() || r != right.end()) {
      const bool only_left = r == right.end() || (l != left.end() && l->first < r->first);
      const bool only_right = l == left.end() || (r != right.end() && r->first < l->first);
      const std::string below = (path.empty() ? "" : path + "/") + (only_right ? r->first : l->first);
      if (only_left)
        whole(LayerDifference::Kind::Deleted, from_, below, (l++)->second, depth + 1);
      else if (only_right)
        whole(LayerDifference::Kind::Added, to_, below, (r++)->second, depth + 1);
      else
        compare(below, (l++)->second, (r++)->second, depth + 1);
    }
  }

  void whole(LayerDifference::Kind kind, Side& side, const std::string& path, const MergedNode& node,
             std::size_t depth) {
    if (depth > kDepthLimit) throw failure("directory " + quote(path) + " is nested too deep");
    visit_({kind, path, {}});
    if (!node.is_directory()) return;
    for (const auto& [name, child] : side.tree.children(node)) whole(kind, side, path + "/" + name, child, depth + 1);
  }

  std::vector<std::string> reasons_of(const std::string& path, const MergedNode& from, const MergedNode& to) {
    const Entry a = from_.entry(path, from), b = to_.entry(path, to);
    std::vector<std::string> reasons;
    if (a.type != b.type || from.is_whiteout() != to.is_whiteout()) reasons.push_back("type");
    if (a.mode != b.mode) reasons.push_back("mode");
    if (a.uid != b.uid || a.gid != b.gid) reasons.push_back("owner");
    if (a.type == EntryType::File && b.type == EntryType::File) {
      if (a.size != b.size)
        reasons.push_back("size");
      else if (!same_content(path, from.top(), to.top()))
        reasons.push_back("content");
    }
    if (a.target != b.target) reasons.push_back("target");
    if (a.major != b.major || a.minor != b.minor) reasons.push_back("device");
    if (a.xattrs != b.xattrs) reasons.push_back("xattrs");
    if (a.mtime != b.mtime) reasons.push_back("time");
    return reasons;
  }

  bool same_content(const std::string& path, const StackedInode& from, const StackedInode& to) {
    left_.resize(kPiece);
    right_.resize(kPiece);
    for (std::uint64_t offset = 0; offset < from.inode.size; offset += kPiece) {
      const std::size_t a = from_.contents.read(from, path, offset, left_.data(), kPiece);
      const std::size_t b = to_.contents.read(to, path, offset, right_.data(), kPiece);
      if (a != b || std::memcmp(left_.data(), right_.data(), a) != 0) return false;
    }
    return true;
  }

  Side from_, to_;
  const std::function<void(const LayerDifference&)>& visit_;
  std::string left_, right_;
};

}  // namespace

void diff_layers(engine::LayerStore& store, const engine::StoredLayer& from, const engine::StoredLayer& to,
                 const std::function<void(const LayerDifference&)>& visit) {
  if (from.manifest.images == to.manifest.images) return;
  Comparison(store, from, to, visit).run();
}

}  // namespace dsec::layers
