// What the store knows of blobs that are loaded while they are used.
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/layout/prefetch_list.h"
#include "registry/loader/served_name.h"
#include "registry/store/blob_session.h"

namespace dsec::registry {
namespace fs = std::filesystem;

bool has_source(Database& database, const Blob& blob) {
  Statement query = database.prepare("SELECT 1 FROM blob_sources WHERE blob = ? AND size = ?");
  return query.bind(blob.digest.hex()).bind(static_cast<std::int64_t>(blob.size)).step();
}

void LocalStore::hold_on_demand(engine::BlobSession& session, const Blob& blob, const Digest& chunks,
                                const BlobOrigin& origin) {
  own(session).hold_on_demand(blob, chunks, origin);
}

void LocalStore::take_file(engine::BlobSession& session, const Blob& blob, const fs::path& file) {
  own(session).take_file(blob, file);
}

std::optional<OnDemandBlob> LocalStore::on_demand(const Digest& blob, const std::optional<Digest>& chunks) {
  const auto index = index_.take();
  Statement query = index->prepare(
      "SELECT registry, chunks, allow_any_fs, size FROM blob_sources WHERE blob = ?1 AND ?2 IN ('', chunks) "
      "ORDER BY chunks, registry");
  query.bind(blob.hex()).bind(chunks ? chunks->hex() : "");
  std::optional<OnDemandBlob> found;
  while (query.step()) {
    const auto size = static_cast<std::uint64_t>(query.number(3));
    if (!found) found = OnDemandBlob{{BlobRole::Data, blob, size}, Digest::parse(query.text(1)), {}, {}};
    // Those that give it another size have other bytes, if any.
    if (size != found->blob.size) continue;
    found->origins.push_back({query.text(0), query.number(2) != 0});
  }
  if (!found) return found;
  Statement layer = index->prepare("SELECT kind, name FROM layer_blobs JOIN layers ON digest = layer WHERE blob = ?");
  if (layer.bind(blob.hex()).step()) found->layer = layer.text(0) + "/" + layer.text(1);
  return found;
}

void LocalStore::keep_prefetch_list(const PrefetchList& list, const LayerManifest& manifest) {
  make_directories(prefetch_lists(), 0700);
  for (const LayerImage& image : manifest.images) {
    const Blob *const data = image.find(BlobRole::Data), *const chunks = image.find(BlobRole::Chunks);
    for (const PrefetchList::OfBlob& each : list.blobs)
      if (data && chunks && data->digest == each.blob)
        write_file_atomic(prefetch_lists() / ServedName{each.blob, chunks->digest}.str(),
                          canonical_json(to_json(each.runs)), 0600);
  }
}

std::vector<ChunkRun> LocalStore::prefetch_list(const Digest& blob, const Digest& chunks, std::uint64_t count) const {
  const fs::path file = prefetch_lists() / ServedName{blob, chunks}.str();
  std::error_code unknown;
  if (!fs::exists(file, unknown)) return {};
  try {
    return runs_from_json(parse_json(read_file(file, kLargestPrefetchList), file.native()), count);
  } catch (const Error&) {
    // Nothing but speed depends on it.
    return {};
  }
}

bool LocalStore::is_on_demand(const LayerManifest& manifest) {
  for (const LayerImage& image : manifest.images)
    if (const Blob* data = image.find(BlobRole::Data);
        data && !has_blob(data->digest) && has_source(*index_.take(), *data))
      return true;
  return false;
}

}  // namespace dsec::registry
