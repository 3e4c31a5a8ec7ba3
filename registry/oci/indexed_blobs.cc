#include "registry/oci/indexed_blobs.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "registry/blob_download.h"
#include "registry/oci/artifact.h"

namespace dsec::registry {
namespace {

// What a pull of the whole reads at a time.
constexpr std::uint64_t kPiece = 4 << 20;

DataIndex parse(const std::string& bytes, const Digest& data, const std::string& what) {
  try {
    DataIndex index = DataIndex::parse(bytes, what);
    if (index.data != data) throw failure(what + " is one of blob " + index.data.str());
    return index;
  } catch (const Error& error) {
    throw BadIndex(error);
  }
}

}  // namespace

std::shared_ptr<const DataIndex> IndexedBlobs::known(const Digest& data) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(data);
  return found == known_.end() ? nullptr : found->second;
}

void IndexedBlobs::forget() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

std::shared_ptr<const DataIndex> IndexedBlobs::find(const Digest& data) {
  // Readers that come at once wait for one of them.
  const std::lock_guard one(finding_);
  if (auto index = known(data)) return index;
  const std::string what = "the index of blob " + data.str();
  const auto document = client_.manifest(repository_, index_tag(data));
  if (!document) return nullptr;
  const auto digest = index_of_artifact(document->bytes, "the manifest of " + what);
  const auto bytes = digest ? client_.blob(repository_, *digest) : std::nullopt;
  if (!bytes) return nullptr;
  auto index = std::make_shared<const DataIndex>(parse(*bytes, data, what));
  const std::lock_guard lock(mutex_);
  return known_.insert_or_assign(data, std::move(index)).first->second;
}

std::optional<std::uint64_t> IndexedBlobs::size(const Digest& data) {
  const auto index = find(data);
  if (!index) return std::nullopt;
  for (const DataIndex::Part& part : index->parts)
    if (client_.blob_size(repository_, part.blob) != part.size) return std::nullopt;
  return index->size;
}

bool IndexedBlobs::read(const Blob& blob, http::Download& download) {
  auto index = known(blob.digest);
  if (!index) {
    if (client_.read_blob(repository_, blob.digest, download)) return true;
    if (blob.role != BlobRole::Data || !(index = find(blob.digest))) return false;
  }
  if (index->size != download.whole())
    throw failure("the index of blob " + blob.digest.str() + " is of " + std::to_string(index->size) +
                  " bytes instead of " + std::to_string(download.whole()));
  read_parts(*index, download);
  return true;
}

void IndexedBlobs::read_parts(const DataIndex& index, http::Download& download) {
  const auto start = std::chrono::steady_clock::now();
  const auto left = [&]() -> std::chrono::milliseconds {
    if (patience_.count() == 0) return patience_;
    const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    if (spent >= patience_) throw failure("the registry does not give the parts of it in time");
    return patience_ - spent;
  };
  std::vector<std::byte> bytes, around;
  while (!download.complete()) {
    const std::uint64_t size = std::min(kPiece, download.size() - download.done());
    bytes.assign(size, std::byte{0});
    for (const PartRead& read : reads_of(index, download.first() + download.done(), size)) {
      const DataIndex::Part& part = index.parts.at(read.part);
      if (read.pieces.size() == 1) {
        read_part(part, read.offset, std::span(bytes).subspan(read.pieces.front().to, read.length), left());
        continue;
      }
      around.resize(read.length);
      read_part(part, read.offset, around, left());
      for (const PartRead::Piece& piece : read.pieces)
        std::memcpy(bytes.data() + piece.to, around.data() + piece.from, piece.length);
    }
    download.take({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
}

void IndexedBlobs::read_part(const DataIndex::Part& part, std::uint64_t offset, std::span<std::byte> bytes,
                             std::chrono::milliseconds within) {
  attempt("cannot read what lies in layer " + part.blob.str() + " of the image", [&] {
    const Blob layer{BlobRole::Data, part.blob, part.size};
    const auto read = [&](http::Download& download) { return client_.read_blob(repository_, part.blob, download); };
    download_range(layer, offset, bytes, read, within);
  });
}

std::set<Digest> indexed_blobs(OciClient& client, const std::string& repository, const LayerManifest& layer) {
  std::set<Digest> indexed;
  for (const LayerImage& image : layer.images)
    if (const Blob* const data = image.find(BlobRole::Data))
      if (!client.blob_size(repository, data->digest) && client.manifest_digest(repository, index_tag(data->digest)))
        indexed.insert(data->digest);
  return indexed;
}

}  // namespace dsec::registry
