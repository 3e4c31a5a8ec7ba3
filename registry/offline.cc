#include "registry/offline.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "registry/loader/chunk_map.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

std::uint64_t cached_bytes(const LocalStore& store, const OnDemandBlob& remote) {
  const fs::path map = store.chunks() / (remote.blob.digest.hex() + "-" + remote.chunks.hex() + ".map");
  std::error_code missing;
  if (!fs::exists(map, missing)) return 0;
  const auto present = ChunkMap::parse(read_file(map, ChunkMap::largest_file(remote.blob.size)), remote.blob.size);
  return present ? present->present_bytes() : 0;
}

/// What is missing, each layer once.
class Missing {
 public:
  explicit Missing(LocalStore& store) : store_(store) {}

  void look(const LayerRef& ref, const engine::StoredLayer& layer) {
    if (!looked_at_.insert(layer.digest).second) return;
    if (const std::uint64_t away = bytes_away(store_, layer.manifest))
      add(format_size(away) + " of the data of " + ref.str() + " are not here", ref);
    for (const Digest& lower : layer.manifest.lowers) {
      const LayerRef below = LayerRef::of(lower);
      if (const auto found = store_.find(below))
        look(below, *found);
      else
        add("layer " + lower.str() + ", which " + ref.str() + " stands on, is not here", ref);
    }
  }
  void add(std::string what, const LayerRef& ref) {
    what_.push_back(std::move(what));
    if (names_.insert(ref.str()).second) refs_ += " " + ref.str();
  }
  void refuse() const {
    if (what_.empty()) return;
    Error error = usage_error(what_.back());
    for (auto text = what_.rbegin() + 1; text != what_.rend(); ++text) error.context(*text);
    throw error.context("not all that is needed is here, and dsec works offline")
        .hint("dsec cache warm" + refs_ + ", where registries can be reached; or leave offline mode");
  }

 private:
  LocalStore& store_;
  std::set<Digest> looked_at_;
  std::set<std::string> names_;
  std::vector<std::string> what_;
  std::string refs_;
};

}  // namespace

std::uint64_t bytes_away(LocalStore& store, const LayerManifest& manifest) {
  std::uint64_t away = 0;
  std::set<Digest> seen;
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs) {
      if (!seen.insert(blob.digest).second || store.has_blob(blob.digest)) continue;
      const Blob* const chunks = image.find(BlobRole::Chunks);
      const auto remote = chunks ? store.on_demand(blob.digest, chunks->digest) : std::nullopt;
      away += blob.size - (remote ? cached_bytes(store, *remote) : 0);
    }
  return away;
}

std::vector<engine::StoredLayer> find_here(LocalStore& store, std::span<const LayerRef> refs) {
  std::vector<engine::StoredLayer> layers;
  Missing missing(store);
  for (const LayerRef& ref : refs) {
    if (auto found = store.find(ref)) {
      missing.look(ref, *found);
      layers.push_back(std::move(*found));
    } else {
      missing.add("layer " + ref.str() + " is not here", ref);
    }
  }
  missing.refuse();
  return layers;
}

}  // namespace dsec::registry
