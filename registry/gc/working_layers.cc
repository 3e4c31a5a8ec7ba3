#include "registry/gc/working_layers.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "core/engine/lease.h"
#include "registry/gc/leftovers.h"
#include "registry/store/working_set.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 8> kHolds = {"sandbox",     "session",   "pinned",     "lock",
                                                    "build-cache", "only-here", "compressed", ""};

struct Reason {
  Hold hold;
  std::string holder;
};

/// Holds by layer, each the strongest that there is.
class Holds {
 public:
  Holds(LocalStore& store, Database& index, const LeasedLayers& leases) {
    for (const auto& [id, layers] : leases.by_sandbox)
      for (const Digest& layer : layers) add(layer, {Hold::Sandbox, id});
    add_sessions(index);
    for (const Digest& layer : pinned_layers(index)) add(layer, {Hold::Pin, ""});
    const std::string build_cache = (store.home().cache() / "").native();
    Statement locks = index.prepare("SELECT path, layer FROM lock_layers");
    while (locks.step()) {
      const bool built = locks.text(0).starts_with(build_cache);
      add(Digest::parse(locks.text(1)), {built ? Hold::BuildCache : Hold::Lock, built ? "" : locks.text(0)});
    }
  }

  const Reason* of(const Digest& layer) const {
    const auto found = by_layer_.find(layer);
    return found == by_layer_.end() ? nullptr : &found->second;
  }

 private:
  void add(const Digest& layer, Reason reason) {
    const auto [found, added] = by_layer_.try_emplace(layer, reason);
    if (!added && reason.hold < found->second.hold) found->second = std::move(reason);
  }

  void add_sessions(Database& index) {
    Statement query = index.prepare(
        "SELECT s.boot_id, s.pid, s.start_ticks, l.layer FROM sessions s JOIN (SELECT session, layer FROM "
        "session_layers "
        "UNION SELECT b.session, lb.layer FROM session_blobs b JOIN layer_blobs lb ON lb.blob = b.blob) l "
        "ON l.session = s.id");
    while (query.step()) {
      const engine::ProcessIdentity owner{query.text(0), static_cast<pid_t>(query.number(1)),
                                          static_cast<std::uint64_t>(query.number(2))};
      if (owner.alive()) add(Digest::parse(query.text(3)), {Hold::Session, ""});
    }
  }

  std::map<Digest, Reason> by_layer_;
};

bool can_come_by_pieces(const LayerManifest& manifest) {
  return std::any_of(manifest.images.begin(), manifest.images.end(), [](const LayerImage& image) {
    return image.find(BlobRole::Data) && image.find(BlobRole::Chunks);
  });
}

// What is recorded of a blob that comes by pieces, as this image names it; empty when it is here.
std::optional<OnDemandBlob> remote_of(LocalStore& store, const LayerImage& image, const Blob& blob) {
  const Blob* const chunks = image.find(BlobRole::Chunks);
  if (!chunks || store.has_blob(blob.digest)) return std::nullopt;
  return store.on_demand(blob.digest, chunks->digest);
}

}  // namespace

std::string_view to_string(Hold hold) { return kHolds[static_cast<std::size_t>(hold)]; }

std::optional<std::uint64_t> stored_bytes(const LocalStore& store, const Digest& blob) {
  struct stat status;
  if (::lstat(store.blob_file(blob).c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

std::vector<WorkingLayer> working_layers(LocalStore& store, const LeasedLayers& leases) {
  std::vector<WorkingLayer> layers;
  std::map<Digest, int> users;
  for (engine::StoredLayer& layer : store.list()) {
    std::set<Digest> own;
    for (const LayerImage& image : layer.manifest.images)
      for (const Blob& blob : image.blobs)
        if (own.insert(blob.digest).second) ++users[blob.digest];
    layers.push_back({.layer = std::move(layer)});
  }
  const auto index = store.index().take();
  const Holds holds(store, *index, leases);
  const std::set<Digest> pinned = pinned_layers(*index);
  std::map<Digest, std::vector<BlobOrigin>> sources = layer_sources(*index);
  for (WorkingLayer& row : layers) {
    const Digest& digest = row.layer.digest;
    row.pinned = pinned.contains(digest);
    row.last_used = std::max(row.layer.added, last_use(store.home(), digest).value_or(row.layer.added));
    row.sources = std::move(sources[digest]);
    std::set<Digest> own;
    for (const LayerImage& image : row.layer.manifest.images)
      for (const Blob& blob : image.blobs) {
        if (!own.insert(blob.digest).second) continue;
        if (const auto bytes = stored_bytes(store, blob.digest)) {
          row.bytes += *bytes;
          if (users[blob.digest] > 1) row.shared += *bytes;
        } else if (const auto remote = remote_of(store, image, blob)) {
          row.away += blob.size;
          row.cached += allocated_bytes(store.chunks() / (blob.digest.hex() + "-" + remote->chunks.hex()));
          if (row.sources.empty()) row.sources = remote->origins;
        }
      }
    if (const Reason* reason = holds.of(digest)) {
      row.hold = reason->hold;
      row.holder = reason->holder;
    } else if (row.sources.empty()) {
      row.hold = Hold::OnlyHere;
    } else if (!can_come_by_pieces(row.layer.manifest)) {
      row.hold = Hold::OneBlob;
    }
  }
  std::sort(layers.begin(), layers.end(), [](const WorkingLayer& a, const WorkingLayer& b) {
    return std::tie(a.last_used, a.layer.digest) < std::tie(b.last_used, b.layer.digest);
  });
  return layers;
}

}  // namespace dsec::registry
