#include "registry/store/disk_use.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/engine/sandbox_id.h"
#include "registry/gc/leftovers.h"
#include "registry/gc/roots.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

std::optional<std::uint64_t> file_bytes(const fs::path& file) {
  struct stat status;
  if (::lstat(file.c_str(), &status) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

DiskUse disk_use(LocalStore& store) {
  DiskUse use;
  const std::vector<engine::StoredLayer> layers = store.list();
  std::map<Digest, int> references;
  std::map<Digest, std::uint64_t> here;  // blobs that the store itself has
  for (const engine::StoredLayer& layer : layers) {
    std::set<Digest> own;
    for (const LayerImage& image : layer.manifest.images)
      for (const Blob& blob : image.blobs)
        if (own.insert(blob.digest).second) {
          ++references[blob.digest];
          if (const auto bytes = file_bytes(store.blob_file(blob.digest)))
            here.emplace(blob.digest, std::min(*bytes, blob.size));  // what a hole makes longer takes no room
        }
  }
  for (const auto& [digest, bytes] : here) use.layers_bytes += bytes;

  LeasedLayers leases;
  leases.refresh(store.home());
  Plan plan;
  {
    const auto index = store.index().take();
    plan = make_plan(*index, leases, {});
  }
  for (const engine::StoredLayer& layer : layers) {
    LayerUse row{layer.digest, layer.manifest.name.str(), layer.tags};
    std::set<Digest> own;
    for (const LayerImage& image : layer.manifest.images)
      for (const Blob& blob : image.blobs) {
        if (!own.insert(blob.digest).second) continue;
        const auto found = here.find(blob.digest);
        const Blob* const chunks = image.find(BlobRole::Chunks);
        const bool away = found == here.end() && chunks && !store.has_blob(blob.digest);
        const auto remote = away ? store.on_demand(blob.digest, chunks->digest) : std::nullopt;
        if (remote) {
          row.on_demand += blob.size;
          row.on_demand_here += allocated_bytes(store.chunks() / (blob.digest.hex() + "-" + remote->chunks.hex()));
          continue;
        }
        if (found == here.end()) {
          row.in_place += blob.size;
          continue;
        }
        row.bytes += found->second;
        (references[blob.digest] == 1 ? row.exclusive : row.shared) += found->second;
      }
    row.reclaimable = !plan.kept_layers.contains(layer.digest);
    use.layers.push_back(std::move(row));
  }
  for (const Plan::DoomedBlob& blob : plan.doomed_blobs)
    use.reclaimable_bytes += file_bytes(store.blob_file(blob.digest)).value_or(0);
  for (const fs::path& leftover : find_leftovers(store.home())) use.reclaimable_bytes += allocated_bytes(leftover);

  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(store.home().sandboxes(), missing)) {
    const std::string id = entry.path().filename();
    if (!engine::is_sandbox_id(id)) continue;
    use.sandboxes.push_back({id, allocated_bytes(entry.path())});
    use.sandboxes_bytes += use.sandboxes.back().bytes;
  }
  use.cache_bytes = allocated_bytes(store.home().cache());
  for (const char* name : {"index.db", "index.db-wal", "index.db-shm", "reserve"})
    use.index_bytes += file_bytes(store.home().store() / name).value_or(0);
  return use;
}

}  // namespace dsec::registry
