#include "layers/build/stack_lookup.h"

#include <fcntl.h>

#include <algorithm>

#include "core/base/files.h"

namespace dsec::layers {
namespace {

constexpr const char* kOpaque = "trusted.overlay.opaque";

enum class Seen { Present, Hidden, BelowToo };

// What one image says of a path: it has it, it hides whatever is below it, or the image below is to be asked.
Seen look(ErofsImage& image, std::string_view path, ErofsInode& at) {
  at = image.root();
  bool opaque = false;
  while (!path.empty()) {
    if (!at.is_directory()) return Seen::Hidden;
    opaque = opaque || image.xattrs(at).contains(kOpaque);
    const std::size_t slash = path.find('/');
    const std::optional<ErofsInode> next = image.lookup(at, path.substr(0, slash));
    if (!next) return opaque ? Seen::Hidden : Seen::BelowToo;
    if (next->is_whiteout()) return Seen::Hidden;
    at = *next;
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return Seen::Present;
}

}  // namespace

std::vector<ErofsImage> open_images(const engine::StoredLayer& layer, engine::LayerStore& store, ImageData contents) {
  std::vector<ErofsImage> images;
  for (const LayerImage& image : layer.manifest.images) {
    UniqueFd meta = open_file(store.blob_path(image.blob(BlobRole::Meta).digest), O_RDONLY);
    UniqueFd data;
    if (const Blob* blob = image.find(BlobRole::Data); blob && contents == ImageData::Wanted)
      data = open_file(store.blob_path(blob->digest), O_RDONLY);
    images.emplace_back(std::move(meta), std::move(data), layer.manifest.name.str());
  }
  return images;
}

std::vector<engine::StoredLayer> stack_up_to(const LayerRef& top,
                                             const std::function<engine::StoredLayer(const LayerRef&)>& get) {
  std::vector<engine::StoredLayer> stack{get(top)};
  while (const std::optional<Digest> built_on = stack.back().manifest.provenance.built_on)
    stack.push_back(get(LayerRef::of(*built_on)));
  std::reverse(stack.begin(), stack.end());
  return stack;
}

StackLookup::StackLookup(std::span<const engine::StoredLayer> bottom_to_top, engine::LayerStore& store) {
  for (const engine::StoredLayer& layer : bottom_to_top)
    for (ErofsImage& image : open_images(layer, store, ImageData::Unwanted)) images_.push_back(std::move(image));
}

std::optional<StackLookup::Found> StackLookup::find(std::string_view path) {
  for (auto image = images_.rbegin(); image != images_.rend(); ++image) {
    Found found;
    const Seen seen = look(*image, path, found.inode);
    if (seen == Seen::BelowToo) continue;
    if (seen == Seen::Hidden) return std::nullopt;
    if (found.inode.is_symlink()) found.target = image->link_target(found.inode);
    return found;
  }
  return std::nullopt;
}

bool is_whiteout(const Entry& entry) {
  return entry.type == EntryType::CharDevice && entry.major == 0 && entry.minor == 0;
}

bool is_opaque(const Entry& entry) { return entry.type == EntryType::Directory && entry.xattrs.contains(kOpaque); }

void NeededDeletions::entry(const Entry& entry) {
  if (is_whiteout(entry) && !below_.has(entry.path)) return;
  if (is_opaque(entry) && !below_.has(entry.path)) {
    Entry plain = entry;
    plain.xattrs.erase(kOpaque);
    return under_.entry(plain);
  }
  under_.entry(entry);
}

}  // namespace dsec::layers
