// What the store knows of blobs that are loaded while they are used.
#include "core/base/error.h"
#include "registry/store/blob_session.h"

namespace dsec::registry {
namespace fs = std::filesystem;

bool has_source(Database& database, const Blob& blob) {
  Statement query = database.prepare("SELECT size FROM blob_sources JOIN blobs ON digest = blob WHERE blob = ?");
  return query.bind(blob.digest.hex()).step() && static_cast<std::uint64_t>(query.number(0)) == blob.size;
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
      "SELECT registry, chunks, allow_any_fs, size FROM blob_sources JOIN blobs ON digest = blob WHERE blob = ?1 "
      "AND ?2 IN ('', chunks) ORDER BY chunks, registry");
  query.bind(blob.hex()).bind(chunks ? chunks->hex() : "");
  std::optional<OnDemandBlob> found;
  while (query.step()) {
    if (!found)
      found = OnDemandBlob{
          {BlobRole::Data, blob, static_cast<std::uint64_t>(query.number(3))}, Digest::parse(query.text(1)), {}, {}};
    found->origins.push_back({query.text(0), query.number(2) != 0});
  }
  if (!found) return found;
  Statement layer = index->prepare("SELECT kind, name FROM layer_blobs JOIN layers ON digest = layer WHERE blob = ?");
  if (layer.bind(blob.hex()).step()) found->layer = layer.text(0) + "/" + layer.text(1);
  return found;
}

bool LocalStore::is_on_demand(const LayerManifest& manifest) {
  for (const LayerImage& image : manifest.images)
    if (const Blob* data = image.find(BlobRole::Data);
        data && !has_blob(data->digest) && has_source(*index_.take(), *data))
      return true;
  return false;
}

}  // namespace dsec::registry
