#include "registry/gc/gc.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/directory_names.h"
#include "core/base/error.h"
#include "registry/gc/leftovers.h"
#include "registry/gc/roots.h"
#include "registry/store/working_set.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"sandbox", "trajectory", "layer",   "blob",
                                                    "session", "lock",       "leftover"};

// Files are unlinked while the index is locked, so only some at a time: imports wait meanwhile.
constexpr std::size_t kBlobsPerTransaction = 16;

class Collection {
 public:
  Collection(LocalStore& store, const GcPorts& ports, bool dry_run) : store_(store), ports_(ports), dry_run_(dry_run) {}

  GcResult run() {
    reclaim_sandboxes();
    expire_trajectories();
    // On a full disk the index can only be written once something else has gone.
    if (!dry_run_) store_.release_reserve();
    leases_.refresh(store_.home());
    decide();
    unmount();
    for (std::size_t at = 0; at < plan_.doomed_blobs.size(); at += kBlobsPerTransaction)
      remove_blobs(
          std::span(plan_.doomed_blobs).subspan(at, std::min(kBlobsPerTransaction, plan_.doomed_blobs.size() - at)));
    remove_unknown_files();
    remove_chunks();
    remove_leftovers();
    if (!dry_run_ && leases_.unreadable.empty()) forget_use(store_.home(), plan_.kept_layers);
    if (!dry_run_) store_.keep_reserve();
    return std::move(result_);
  }

 private:
  void removed(GcItem::Kind kind, std::string name, std::uint64_t bytes = 0) {
    result_.removed.push_back({kind, std::move(name), bytes});
    result_.bytes += bytes;
  }

  void reclaim_sandboxes() {
    if (!ports_.reclaim_sandboxes) return;
    for (const std::string& id : ports_.reclaim_sandboxes(dry_run_, result_.warnings)) {
      going_.sandboxes.insert(id);
      removed(GcItem::Kind::Sandbox, id);
    }
  }

  void expire_trajectories() {
    if (!ports_.expire_trajectories) return;
    for (GcItem& item : ports_.expire_trajectories(dry_run_, result_.warnings)) {
      going_.trajectories.insert(item.name);
      removed(item.kind, std::move(item.name), item.bytes);
    }
  }

  // What is decided under the writer's lock stays right: a lease that comes later is confirmed after this commits.
  void decide() {
    const auto index = store_.index().take();
    Transaction transaction(*index);
    leases_.refresh(store_.home());
    plan_ = make_plan(*index, leases_, going_);
    for (const std::string& what : leases_.unreadable_trajectories)
      result_.warnings.push_back("what layers a trajectory needs is not known: " + what);
    for (const std::string& what : leases_.unreadable)
      result_.warnings.push_back("no layer is removed while a lease cannot be read: " + what);
    if (!leases_.unreadable.empty()) {
      plan_.doomed_layers.clear();
      plan_.doomed_blobs.clear();
    }
    for (const Digest& layer : plan_.doomed_layers) {
      Statement name = index->prepare("SELECT kind, name FROM layers WHERE digest = ?");
      name.bind(layer.hex()).step();
      removed(GcItem::Kind::Layer, name.text(0) + "/" + name.text(1) + " " + layer.brief());
    }
    for (const std::int64_t session : plan_.dead_sessions) {
      Statement owner = index->prepare("SELECT pid FROM sessions WHERE id = ?");
      owner.bind(session).step();
      removed(GcItem::Kind::Session, "of process " + std::to_string(owner.number(0)));
    }
    for (const std::string& path : plan_.dead_locks) removed(GcItem::Kind::Lock, path);
    if (dry_run_) return;
    for (const Digest& layer : plan_.doomed_layers)
      index->prepare("DELETE FROM layers WHERE digest = ?").bind(layer.hex()).run();
    for (const std::int64_t session : plan_.dead_sessions)
      index->prepare("DELETE FROM sessions WHERE id = ?").bind(session).run();
    for (const std::string& path : plan_.dead_locks)
      index->prepare("DELETE FROM locks WHERE path = ?").bind(path).run();
    transaction.commit();
  }

  // Before blobs go: a mounted one would keep its space.
  void unmount() {
    if (dry_run_ || !ports_.unmount_unused || !leases_.unreadable.empty()) return;
    std::vector<Digest> needed;
    for (const auto& [id, layers] : leases_.by_sandbox)
      for (const Digest& layer : layers)
        if (const auto stored = store_.find(LayerRef::of(layer)))
          for (const LayerImage& image : stored->manifest.images)
            if (const Blob* const meta = image.find(BlobRole::Meta)) needed.push_back(meta->digest);
    try {
      result_.unmounted = ports_.unmount_unused(needed);
    } catch (const Error& error) {
      result_.warnings.push_back("layers stay mounted: " + error.message());
    }
  }

  void remove_blobs(std::span<const Plan::DoomedBlob> blobs) {
    const auto index = store_.index().take();
    Transaction transaction(*index);
    for (const Plan::DoomedBlob& blob : blobs) {
      const std::string& hex = blob.digest.hex();
      if (!dry_run_) {
        Statement used = index->prepare(
            "SELECT 1 FROM layer_blobs WHERE blob = ?1 UNION ALL SELECT 1 FROM session_blobs WHERE blob = ?1");
        if (used.bind(hex).step()) continue;  // somebody has come to need it since
        index->prepare("DELETE FROM blobs WHERE digest = ?").bind(hex).run();
      }
      remove_file(store_.blob_file(blob.digest), GcItem::Kind::Blob, blob.digest.str());
    }
    if (!dry_run_) transaction.commit();
  }

  // Files the index does not know: it was lost or replaced by an older one.
  void remove_unknown_files() {
    std::error_code gone;
    for (const std::string& shelf_name : directory_names(store_.blob_root())) {
      const fs::path shelf = store_.blob_root() / shelf_name;
      if (!fs::is_directory(fs::symlink_status(shelf, gone))) continue;
      for (const std::string& name : directory_names(shelf)) {
        if (!Digest::valid_hex(name) || is_known(name)) continue;
        const auto index = store_.index().take();
        const Transaction serialised(*index);
        Statement known = index->prepare("SELECT 1 FROM blobs WHERE digest = ?");
        if (!known.bind(name).step()) remove_file(shelf / name, GcItem::Kind::Blob, "sha256:" + name);
      }
    }
  }

  // And lists of them. Of blobs that no layer has, or that have come wholly.
  void remove_chunks() {
    remove_chunks(store_.chunks());
    remove_chunks(store_.prefetch_lists());
  }

  void remove_chunks(const fs::path& directory) {
    for (const std::string& name : directory_names(directory)) {
      const std::string hex = name.substr(0, 64);
      const bool doomed = std::any_of(plan_.doomed_blobs.begin(), plan_.doomed_blobs.end(),
                                      [&](const Plan::DoomedBlob& blob) { return blob.digest.hex() == hex; });
      if (!Digest::valid_hex(hex)) continue;
      const Digest digest = Digest::parse(hex);
      if (!doomed && store_.on_demand(digest) && !fs::exists(store_.blob_file(digest))) continue;
      const fs::path path = directory / name;
      remove_file(path, GcItem::Kind::Leftover, path.lexically_relative(store_.home().root()).native());
    }
  }

  bool is_known(const std::string& hex) {
    const auto index = store_.index().take();
    Statement known = index->prepare("SELECT 1 FROM blobs WHERE digest = ?");
    if (known.bind(hex).step()) return true;
    // A dry run has looked at these already; a real one has removed their rows and files.
    return std::any_of(plan_.doomed_blobs.begin(), plan_.doomed_blobs.end(),
                       [&](const Plan::DoomedBlob& blob) { return blob.digest.hex() == hex; });
  }

  void remove_leftovers() {
    for (const fs::path& path : find_leftovers(store_.home())) {
      const std::uint64_t bytes = allocated_bytes(path);
      try {
        if (!dry_run_) remove_tree(path);
        removed(GcItem::Kind::Leftover, path.lexically_relative(store_.home().root()).native(), bytes);
      } catch (const Error& error) {
        result_.warnings.push_back(error.message());
      }
    }
  }

  void remove_file(const fs::path& path, GcItem::Kind kind, std::string name) {
    std::error_code ignored;
    // A blob without a file: its importer was killed before it had one, or it lies in a registry.
    if (!fs::exists(fs::symlink_status(path, ignored))) return;
    const std::uint64_t bytes = allocated_bytes(path);
    if (!dry_run_ && ::unlink(path.c_str()) != 0 && errno != ENOENT) {
      result_.warnings.push_back(system_error("remove " + quote(path.native())).message());
      return;
    }
    removed(kind, std::move(name), bytes);
  }

  LocalStore& store_;
  const GcPorts& ports_;
  bool dry_run_;
  Ignored going_;
  LeasedLayers leases_;
  Plan plan_;
  GcResult result_;
};

}  // namespace

std::string_view to_string(GcItem::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

GcResult collect_garbage(LocalStore& store, const GcPorts& ports, bool dry_run) {
  return attempt("cannot collect garbage", [&] { return Collection(store, ports, dry_run).run(); });
}

}  // namespace dsec::registry
