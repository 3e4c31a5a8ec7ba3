#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/http/message.h"
#include "core/model/data_index.h"
#include "core/model/layer_manifest.h"
#include "registry/oci/client.h"

namespace dsec::registry {

/// What is there as the index of a blob is none.
struct BadIndex : Error {
  explicit BadIndex(Error error) : Error(std::move(error)) {}
};

/// The data blobs of layers as a repository gives them: a blob of that digest, or parts of the layers of an image that
/// an index of it leads to (man/dsec-oci.5.md). Thread-safe.
class IndexedBlobs {
 public:
  /// `client` must outlive it. `patience`: how long what is read of parts for one request may take; 0: as long as it
  /// takes.
  IndexedBlobs(OciClient& client, std::string repository, std::chrono::milliseconds patience)
      : client_(client), repository_(std::move(repository)), patience_(patience) {}

  /// False when there is neither the blob nor an index of it. Who reads verifies the bytes.
  bool read(const Blob& blob, http::Download& download);
  /// Empty when there is no index, or not all that it leads to. Throws BadIndex, too.
  std::optional<std::uint64_t> size(const Digest& data);
  /// What is known of indexes is asked for anew.
  void forget();

 private:
  std::shared_ptr<const DataIndex> known(const Digest& data);
  std::shared_ptr<const DataIndex> find(const Digest& data);
  void read_parts(const DataIndex& index, http::Download& download);
  void read_part(const DataIndex::Part& part, std::uint64_t offset, std::span<std::byte> bytes,
                 std::chrono::milliseconds within);

  OciClient& client_;
  const std::string repository_;
  const std::chrono::milliseconds patience_;
  std::mutex finding_;
  std::mutex mutex_;  ///< of known_
  std::map<Digest, std::shared_ptr<const DataIndex>> known_;
};

/// Which data blobs of a layer a repository has only by an index.
std::set<Digest> indexed_blobs(OciClient& client, const std::string& repository, const LayerManifest& layer);

}  // namespace dsec::registry
