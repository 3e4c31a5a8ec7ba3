#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/engine/home.h"
#include "core/engine/layer_store.h"
#include "registry/store/database_pool.h"

namespace dsec::registry {

/// A manifest larger than this is neither stored, published nor read.
inline constexpr std::uint64_t kLargestManifest = 16ull << 20;

struct ChunkRun;
struct PrefetchList;

/// What `dsec layer rm` did.
struct Removal {
  std::vector<std::string> tags;  ///< removed, whole: "base/debian:12"
  /// Set when no tag is left: gc removes the layer unless a lease, lock or layer built on it names it.
  std::optional<Digest> untagged;
};

/// A registry that has a blob.
struct BlobOrigin {
  std::string registry;  ///< URL
  bool allow_any_fs = false;
};

/// A data blob that is loaded while it is used.
struct OnDemandBlob {
  Blob blob;
  Digest chunks;                    ///< of the blob with its chunk digests
  std::string layer;                ///< one that has it: "base/debian"
  std::vector<BlobOrigin> origins;  ///< at least one
};

/// The store below DSEC_HOME: blob files under store/blobs, everything else in store/index.db (schema.h);
/// man/dsec-home.5.md describes both and what a crash leaves.
class LocalStore final : public engine::LayerStore {
 public:
  explicit LocalStore(const engine::Home& home);
  ~LocalStore() override;

  std::unique_ptr<engine::BlobSession> begin_session() override;
  engine::StoredLayer add(const LayerManifest& manifest, const std::string& tag, engine::Trust trust,
                          engine::BlobSession& session, const std::map<std::string, std::string>& labels = {}) override;

  std::optional<engine::StoredLayer> find(const LayerRef& ref) override;
  engine::StoredLayer get(const LayerRef& ref) override;
  std::vector<engine::StoredLayer> list() override;
  void confirm(std::span<const Digest> layers) override;

  void tag(const Digest& layer, const LayerName& name, const std::string& tag) override;
  bool untag(const LayerName& name, const std::string& tag) override;
  void mark_trusted(const Digest& layer) override;

  std::filesystem::path blob_path(const Digest& blob) override;
  bool has_blob(const Digest& blob) override;

  /// A tag is removed; a digest takes all tags of its layer away. Throws Error (Usage) like get().
  Removal remove(const LayerRef& ref);

  void register_lock(const std::filesystem::path& path, std::span<const Digest> layers) override;

  /// A little space is set aside in the store, so that the index can be written on a full disk: by who removes
  /// something. True when there was any to give up; keep_reserve() takes it back when there is room again.
  bool release_reserve() noexcept;
  void keep_reserve() noexcept;

  /// Holds a blob that stays where it lies in a registry; its size there must be right. False when it is not there.
  bool hold_in_place(engine::BlobSession& session, const Blob& blob, const std::filesystem::path& path);

  /// Holds a data blob that is loaded while it is used, from the registry at this URL and from those that were given
  /// before. `chunks` names the blob with its chunk digests, which the session holds.
  void hold_on_demand(engine::BlobSession& session, const Blob& blob, const Digest& chunks, const BlobOrigin& origin);
  /// What is recorded of such a blob, whether or not it has come wholly by now; empty for others. With `chunks`: as
  /// layers give it that have these chunk digests for it. Others may have wrong ones, which must not count for these.
  std::optional<OnDemandBlob> on_demand(const Digest& blob, const std::optional<Digest>& chunks = {});
  /// For whoever loads the blobs of that layer: what to fetch of each before it is asked for, instead of what was kept.
  void keep_prefetch_list(const PrefetchList& list, const LayerManifest& manifest);
  /// What was kept for a blob with these chunk digests; empty when there is nothing that fits so many chunks.
  std::vector<ChunkRun> prefetch_list(const Digest& blob, const Digest& chunks, std::uint64_t count) const;
  /// Whether some of the layer's blobs are loaded while they are used, since they are not here.
  bool is_on_demand(const LayerManifest& manifest);
  /// Called by blob_path() for a blob that is loaded on demand, to bring all of it into the store.
  void set_fetch(std::function<void(const OnDemandBlob&)> fetch) { fetch_ = std::move(fetch); }
  /// Takes a complete file of the blob, which lies in the home and may be open for reading, into the store.
  void take_file(engine::BlobSession& session, const Blob& blob, const std::filesystem::path& file);

  /// Whether blobs have come in through this object.
  bool has_grown() const noexcept { return grown_; }

  const engine::Home& home() const noexcept { return home_; }
  DatabasePool& index() noexcept { return index_; }
  /// Where the file of a blob is, or would be.
  std::filesystem::path blob_file(const Digest& blob) const;
  /// Where the chunks of blobs that are loaded on demand are cached.
  std::filesystem::path chunks() const { return home_.cache() / "chunks"; }
  /// Where lists of chunks that are to be fetched first are kept, one for each blob that is loaded on demand.
  std::filesystem::path prefetch_lists() const { return home_.cache() / "prefetch"; }
  std::filesystem::path blob_root() const { return home_.store() / "blobs/sha256"; }

 private:
  class Session;
  Session& own(engine::BlobSession& session) const;
  std::shared_ptr<const LayerManifest> manifest(Database& database, const Digest& layer);
  engine::StoredLayer load(Database& database, const Digest& layer);
  std::optional<Digest> resolve(Database& database, const LayerRef& ref);
  Removal remove_tags(const LayerRef& ref);
  template <typename Action>
  auto with_reserve(Action&& action);
  DatabasePool open_index();

  engine::Home home_;
  DatabasePool index_;
  std::function<void(const OnDemandBlob&)> fetch_;
  std::atomic<bool> grown_ = false;
  // Manifests never change, so they are parsed once.
  std::mutex cache_mutex_;
  std::unordered_map<Digest, std::shared_ptr<const LayerManifest>> manifests_;
};

std::unique_ptr<LocalStore> open_store(const engine::Home& home);
/// The same behind the engine's port.
std::unique_ptr<engine::LayerStore> make_layer_store(const engine::Home& home);

}  // namespace dsec::registry
