#include "layers/compose/export_layer.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"
#include "layers/compose/contents.h"
#include "layers/compose/merged_tree.h"
#include "layers/compose/oci_tar.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 1 << 20;  // bytes written at a time

class Export {
 public:
  Export(engine::LayerStore& store, const engine::StoredLayer& layer, int fd, Progress& progress)
      : tree_(store, std::span(&layer, 1), MergedTree::Contents::Yes),
        contents_(store, tree_),
        tar_(fd),
        implicit_(layer.manifest.implicit_parents.begin(), layer.manifest.implicit_parents.end()),
        step_("export " + layer.manifest.name.str()),
        total_(layer.manifest.total_size()),
        progress_(progress) {}

  std::uint64_t run() {
    progress_.begin(step_);
    walk_merged(tree_, [this](const std::string& path, const MergedNode& node) {
      put(path, node);
      progress_.advance(step_, tar_.written(), total_);
      return true;
    });
    tar_.finish();
    progress_.end(step_, "");
    return tar_.written();
  }

 private:
  void put(const std::string& path, const MergedNode& node) {
    if (node.is_whiteout()) return tar_.deletion(path);
    if (node.is_directory() && !node.opaque && implicit_.contains(path)) return;
    const StackedInode& top = node.top();
    Entry entry = to_entry(tree_.image(top.image), path, top.inode);
    if (!node.is_directory() && top.inode.nlink > 1) {
      const auto [first, is_new] = links_.try_emplace({top.image, top.inode.nid}, path);
      if (!is_new) {
        entry.type = EntryType::HardLink;
        entry.target = first->second;
      }
    }
    std::vector<ErofsExtent> parts;
    if (entry.type == EntryType::File) contents_.extents(top, [&](const ErofsExtent& part) { parts.push_back(part); });
    tar_.entry(entry, parts);
    for (const ErofsExtent& part : parts) put_data(top, path, part);
    if (node.opaque) tar_.opaque(path);
  }

  // The archive is given the zeros of holes too, and drops them.
  void put_data(const StackedInode& file, const std::string& path, const ErofsExtent& part) {
    buffer_.assign(kPiece, '\0');
    for (std::uint64_t done = 0; done < part.length;) {
      std::size_t piece = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, part.length - done));
      if (!part.hole) piece = contents_.read(file, path, part.offset + done, buffer_.data(), piece);
      if (piece == 0) throw failure("file " + quote(path) + " is shorter than its size says");
      tar_.data({buffer_.data(), piece});
      done += piece;
    }
  }

  MergedTree tree_;
  Contents contents_;
  OciTar tar_;
  std::set<std::string> implicit_;  ///< parents that an archive need not have
  std::string step_;
  std::uint64_t total_;
  Progress& progress_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::string> links_;
  std::string buffer_;
};

}  // namespace

std::uint64_t export_layer(engine::LayerStore& store, const engine::StoredLayer& layer, int fd, Progress& progress) {
  return attempt("cannot export layer " + quote(layer.manifest.name.str()),
                 [&] { return Export(store, layer, fd, progress).run(); });
}

}  // namespace dsec::layers
