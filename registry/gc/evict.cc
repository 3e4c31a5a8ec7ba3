#include "registry/gc/evict.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <tuple>

#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/patience.h"
#include "registry/registries.h"
#include "registry/registry.h"

namespace dsec::registry {
namespace {

// Of registries that are asked whether they still have something, while somebody waits.
constexpr Patience kPatience{.stall = std::chrono::seconds(5), .tries = 1};

std::string shown(const engine::StoredLayer& layer) {
  return layer.tags.empty() ? layer.manifest.name.str() + " " + layer.digest.brief() : layer.tags.front();
}

/// A blob that is a file of the store, and who has it.
struct Held {
  std::uint64_t bytes = 0;
  std::vector<const WorkingLayer*> layers;
  std::set<Digest> chunks;  ///< of each image that has it as data
  bool by_pieces = true;    ///< it is data with chunk digests wherever it stands

  Hold hold() const {
    Hold strongest = Hold::None;
    for (const WorkingLayer* layer : layers) strongest = std::min(strongest, layer->hold);
    return strongest;
  }
  std::chrono::system_clock::time_point last_used() const {
    auto last = layers.front()->last_used;
    for (const WorkingLayer* layer : layers) last = std::max(last, layer->last_used);
    return last;
  }
};

/// Asks registries, each of which is opened once.
class Registries {
 public:
  Registries(Progress& progress, std::vector<std::string>& warnings) : progress_(progress), warnings_(warnings) {}

  bool has(const BlobOrigin& origin, const Digest& blob, std::uint64_t bytes) {
    Registry* const registry = open(origin);
    if (!registry) return false;
    try {
      return registry->blob_size(blob) == bytes;
    } catch (const Error& error) {
      give_up(origin, error);
      return false;
    }
  }

 private:
  Registry* open(const BlobOrigin& origin) {
    const auto known = open_.find(origin.registry);
    if (known != open_.end()) return known->second.get();
    try {
      RegistryAddress address = find_registry(Config::load(), origin.registry);
      address.allow_any_fs = address.allow_any_fs || origin.allow_any_fs;
      return (open_[origin.registry] = open_registry(address, kPatience, progress_)).get();
    } catch (const Error& error) {
      give_up(origin, error);
      return nullptr;
    }
  }
  void give_up(const BlobOrigin& origin, const Error& error) {
    open_[origin.registry] = nullptr;
    warnings_.push_back("what registry " + origin.registry + " has is not evicted: " + error.message());
  }

  Progress& progress_;
  std::vector<std::string>& warnings_;
  std::map<std::string, std::unique_ptr<Registry>> open_;
};

class Eviction {
 public:
  Eviction(LocalStore& store, const EvictOptions& options, Progress& progress)
      : store_(store), options_(options), registries_(progress, result_.warnings) {}

  EvictResult run() {
    look();
    if (result_.before > options_.to && leases_.unreadable.empty()) evict_oldest();
    for (const std::string& what : leases_.unreadable)
      result_.warnings.push_back("nothing is evicted while a lease cannot be read: " + what);
    for (const auto& entry : blobs_) add_held(entry);
    if (!unmounted_.empty()) unmount();
    return std::move(result_);
  }

 private:
  void look() {
    leases_.refresh(store_.home());
    layers_ = working_layers(store_, leases_);
    for (const WorkingLayer& row : layers_)
      for (const LayerImage& image : row.layer.manifest.images)
        for (const Blob& blob : image.blobs) note(row, image, blob);
    result_.before = store_bytes(store_);
    std::uint64_t named = 0;
    for (const auto& [digest, held] : blobs_) named += held.bytes;
    if (result_.before > named) result_.held["unnamed"] = result_.before - named;
    result_.after = result_.before;
  }

  void note(const WorkingLayer& row, const LayerImage& image, const Blob& blob) {
    const auto bytes = stored_bytes(store_, blob.digest);
    if (!bytes) return;
    Held& held = blobs_[blob.digest];
    held.bytes = *bytes;
    held.layers.push_back(&row);
    const Blob* const chunks = image.find(BlobRole::Chunks);
    if (blob.role == BlobRole::Data && chunks && blob.size == *bytes)
      held.chunks.insert(chunks->digest);
    else
      held.by_pieces = false;
  }

  void evict_oldest() {
    std::vector<Digest> candidates;
    for (const auto& [digest, held] : blobs_)
      if (held.by_pieces && held.bytes > 0 && held.hold() == Hold::None) candidates.push_back(digest);
    std::sort(candidates.begin(), candidates.end(), [&](const Digest& a, const Digest& b) {
      const Held &left = blobs_.at(a), &right = blobs_.at(b);
      return std::make_tuple(left.last_used(), right.bytes, a) < std::make_tuple(right.last_used(), left.bytes, b);
    });
    for (const Digest& blob : candidates) {
      if (result_.after <= options_.to) return;
      evict_blob(blob);
    }
  }

  void evict_blob(const Digest& blob) {
    const Held& held = blobs_.at(blob);
    const std::vector<BlobOrigin> origins = options_.offline ? std::vector<BlobOrigin>() : origins_of(blob, held);
    if (origins.empty()) {
      away_.insert(blob);
      return;
    }
    if (!options_.dry_run && !remove(blob, held, origins)) return;
    for (const WorkingLayer* layer : held.layers) unmounted_.insert(layer->layer.digest);
    result_.evicted.push_back({shown(held.layers.front()->layer), blob, held.bytes, origins.front().registry});
    result_.after -= held.bytes;
    blobs_.erase(blob);
  }

  // Registries that have it now.
  std::vector<BlobOrigin> origins_of(const Digest& blob, const Held& held) {
    std::map<std::string, BlobOrigin> known;
    for (const WorkingLayer* layer : held.layers)
      for (const BlobOrigin& origin : layer->sources) known.emplace(origin.registry, origin);
    if (const auto recorded = store_.on_demand(blob))
      for (const BlobOrigin& origin : recorded->origins) known.emplace(origin.registry, origin);
    std::vector<BlobOrigin> origins;
    for (const auto& [url, origin] : known)
      if (registries_.has(origin, blob, held.bytes)) origins.push_back(origin);
    return origins;
  }

  // False when somebody has come to need it. Where it comes from is recorded first: from then on it may be missing.
  bool remove(const Digest& blob, const Held& held, const std::vector<BlobOrigin>& origins) {
    const auto index = store_.index().take();
    {
      Transaction transaction(*index);
      for (const BlobOrigin& origin : origins)
        for (const Digest& chunks : held.chunks)
          index
              ->prepare(
                  "INSERT INTO blob_sources (blob, registry, chunks, allow_any_fs, size) SELECT digest, ?2, ?3, ?4, ?5 "
                  "FROM blobs WHERE digest = ?1 ON CONFLICT (blob, registry, chunks) DO UPDATE SET "
                  "allow_any_fs = excluded.allow_any_fs, size = excluded.size")
              .bind(blob.hex())
              .bind(origin.registry)
              .bind(chunks.hex())
              .bind(std::int64_t{origin.allow_any_fs})
              .bind(static_cast<std::int64_t>(held.bytes))
              .run();
      transaction.commit();
    }
    // As in gc: who starts a sandbox has written its lease, or asks for its layers after this.
    Transaction transaction(*index);
    leases_.refresh(store_.home());
    if (!leases_.unreadable.empty() || is_needed(*index, blob, held)) return false;
    if (::unlink(store_.blob_file(blob).c_str()) != 0 && errno != ENOENT)
      throw system_error("remove " + quote(store_.blob_file(blob).native()));
    transaction.commit();
    return true;
  }

  bool is_needed(Database& index, const Digest& blob, const Held& held) const {
    std::set<Digest> layers;
    Statement users = index.prepare("SELECT layer FROM layer_blobs WHERE blob = ?");
    users.bind(blob.hex());
    while (users.step()) layers.insert(Digest::parse(users.text(0)));
    for (const Digest& layer : layers)
      if (std::none_of(held.layers.begin(), held.layers.end(),
                       [&](const WorkingLayer* known) { return known->layer.digest == layer; }))
        return true;
    for (const auto& [id, leased] : leases_.by_sandbox)
      for (const Digest& layer : leased)
        if (layers.contains(layer)) return true;
    Statement query = index.prepare(
        "SELECT 1 FROM session_blobs WHERE blob = ?1 UNION ALL SELECT 1 FROM layer_blobs b JOIN pins p "
        "ON p.layer = b.layer WHERE b.blob = ?1 UNION ALL SELECT 1 FROM layer_blobs b JOIN lock_layers l "
        "ON l.layer = b.layer WHERE b.blob = ?1");
    return query.bind(blob.hex()).step();
  }

  void add_held(const std::pair<const Digest, Held>& entry) {
    const Held& held = entry.second;
    const Hold hold = held.hold();
    const std::string why = hold != Hold::None            ? std::string(to_string(hold))
                            : !held.by_pieces             ? "metadata"
                            : away_.contains(entry.first) ? "away"
                                                          : "";
    if (!why.empty()) result_.held[why] += held.bytes;
  }

  // A mounted image would keep the space of its data.
  void unmount() {
    if (options_.dry_run || !options_.unmount_others) return;
    std::vector<Digest> needed;
    for (const WorkingLayer& row : layers_)
      if (!unmounted_.contains(row.layer.digest))
        for (const LayerImage& image : row.layer.manifest.images)
          if (const Blob* const meta = image.find(BlobRole::Meta)) needed.push_back(meta->digest);
    try {
      options_.unmount_others(needed);
    } catch (const Error& error) {
      result_.warnings.push_back("evicted layers stay mounted: " + error.message());
    }
  }

  LocalStore& store_;
  const EvictOptions& options_;
  EvictResult result_;
  Registries registries_;
  LeasedLayers leases_;
  std::vector<WorkingLayer> layers_;
  std::map<Digest, Held> blobs_;
  std::set<Digest> away_, unmounted_;
};

}  // namespace

std::uint64_t store_bytes(LocalStore& store) {
  std::uint64_t bytes = 0;
  const auto index = store.index().take();
  Statement blobs = index->prepare("SELECT digest FROM blobs");
  while (blobs.step()) bytes += stored_bytes(store, Digest::parse(blobs.text(0))).value_or(0);
  return bytes;
}

EvictResult evict(LocalStore& store, const EvictOptions& options, Progress& progress) {
  return attempt("cannot evict layers from the store", [&] { return Eviction(store, options, progress).run(); });
}

std::string held_text(const EvictResult& result) {
  static const std::map<std::string, std::string> kTexts = {{"sandbox", "of layers of sandboxes"},
                                                            {"session", "of layers that commands are at work on"},
                                                            {"pinned", "pinned"},
                                                            {"lock", "named by dsec.lock files"},
                                                            {"build-cache", "in the build cache"},
                                                            {"only-here", "only here"},
                                                            {"compressed", "compressed, which only comes as a whole"},
                                                            {"metadata", "metadata"},
                                                            {"away", "of which no registry could be asked or has it"},
                                                            {"unnamed", "named by nothing, which dsec gc removes"}};
  std::vector<std::pair<std::uint64_t, std::string>> parts;
  for (const auto& [why, bytes] : result.held) parts.emplace_back(bytes, kTexts.at(why));
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (const auto& [bytes, what] : parts) text += (text.empty() ? "" : ", ") + format_size(bytes) + " " + what;
  return text;
}

}  // namespace dsec::registry
