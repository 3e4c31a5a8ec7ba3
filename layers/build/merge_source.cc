#include "layers/build/merge_source.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace dsec::layers {
namespace {

constexpr const char* kOpaque = "trusted.overlay.opaque";
constexpr const char* kOrigin = "trusted.overlay.origin";
constexpr std::size_t kPiece = 1 << 20;

// Where the entry that stands at a path comes from.
struct Place {
  std::size_t image;
  ErofsInode inode;
  bool opaque = false;    // hides what lies below the merged layers
  bool implicit = false;  // a directory that exists only because something lies in it
};

class MergeSource final : public Source {
 public:
  MergeSource(std::span<const engine::StoredLayer> layers, engine::LayerStore& store, StackLookup& below,
              SourceFacts facts)
      : below_(below), facts_(std::move(facts)) {
    for (const engine::StoredLayer& layer : layers) {
      const std::set<std::string> implicit(layer.manifest.implicit_parents.begin(),
                                           layer.manifest.implicit_parents.end());
      for (ErofsImage& image : open_images(layer, store, ImageData::Wanted)) {
        images_.push_back(std::move(image));
        implicit_.push_back(implicit);
      }
    }
  }

  SourceFacts examine(const SourceOptions&, Progress&) override {
    for (std::size_t i = 0; i < images_.size(); ++i)
      walk(images_[i], [&](const std::string& path, const ErofsInode& inode) { put(i, path, inode); });
    return facts_;
  }

  void emit(std::size_t, TreeSink& sink) override {
    NeededDeletions needed(sink, below_);
    std::map<std::pair<std::size_t, std::uint64_t>, std::string> first_names;
    for (const auto& [path, place] : merged_) {
      if (place.implicit) continue;
      Entry entry = to_entry(images_[place.image], path, place.inode);
      entry.xattrs.erase(kOpaque);
      entry.xattrs.erase(kOrigin);
      if (place.opaque) entry.xattrs[kOpaque] = "y";
      if (!place.inode.is_directory() && place.inode.nlink > 1) {
        const auto [known, first] = first_names.try_emplace({place.image, place.inode.nid}, path);
        if (!first) {
          entry.type = EntryType::HardLink;
          entry.target = known->second;
          entry.size = 0;
        }
      }
      needed.entry(entry);
      if (entry.type == EntryType::File) copy_content(place, needed);
    }
  }

 private:
  void put(std::size_t image, const std::string& path, const ErofsInode& inode) {
    const auto old = merged_.find(path);
    const bool over_whiteout = old != merged_.end() && old->second.inode.is_whiteout();
    Place place{image, inode};
    if (!inode.is_directory()) {
      erase_below(path);
      merged_.insert_or_assign(path, place);
      return;
    }
    // A directory made where an earlier step deleted has to be told, as what it hides has to stay hidden.
    place.implicit = implicit_[image].contains(path) && !over_whiteout;
    const bool opaque = images_[image].xattrs(inode).contains(kOpaque);
    if (opaque) erase_below(path);
    place.opaque = opaque || over_whiteout;
    if (old != merged_.end() && old->second.inode.is_directory()) {
      place.opaque = place.opaque || old->second.opaque;
      if (place.implicit) {
        old->second.opaque = place.opaque;
        return;
      }
    }
    merged_.insert_or_assign(path, place);
  }

  void erase_below(const std::string& path) {
    if (path.empty()) {
      merged_.clear();
      return;
    }
    // '0' follows '/'.
    merged_.erase(merged_.lower_bound(path + "/"), merged_.lower_bound(path + "0"));
  }

  void copy_content(const Place& place, TreeSink& sink) {
    std::string piece(kPiece, '\0');
    for (std::uint64_t at = 0; at < place.inode.size;) {
      const std::size_t got = images_[place.image].read(place.inode, at, piece.data(), piece.size());
      if (got == 0) throw failure("file contents end early in a step's image");
      sink.data(std::string_view(piece).substr(0, got));
      at += got;
    }
  }

  StackLookup& below_;
  SourceFacts facts_;
  std::vector<ErofsImage> images_;
  std::vector<std::set<std::string>> implicit_;
  std::map<std::string, Place> merged_;
};

}  // namespace

std::unique_ptr<Source> make_merge_source(std::span<const engine::StoredLayer> bottom_to_top, engine::LayerStore& store,
                                          StackLookup& below, SourceFacts facts) {
  return std::make_unique<MergeSource>(bottom_to_top, store, below, std::move(facts));
}

}  // namespace dsec::layers
