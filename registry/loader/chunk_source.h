#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/variables.h"
#include "registry/loader/origin_health.h"
#include "registry/patience.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry {

/// A blob that is read on demand.
struct RemoteBlob {
  Blob blob;
  Digest chunks;                    ///< of the blob with its chunk digests
  std::string layer;                ///< for messages: "base/debian"
  std::vector<BlobOrigin> origins;  ///< in the order in which they are asked
};

/// Where bytes of a blob come from; a port, since tests have registries that lie and stall. Throws Error. Any number of
/// threads.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual void read(const BlobOrigin& origin, const RemoteBlob& blob, std::uint64_t offset,
                    std::span<std::byte> bytes) = 0;
  /// What an origin gave was wrong, and it may be asked again.
  virtual void distrust(const BlobOrigin& origin) { (void)origin; }
  /// The registries that have the blob as far as is known by now: asked for when those that were known have failed.
  virtual std::vector<BlobOrigin> origins(const RemoteBlob& blob) { return blob.origins; }
  /// Somebody came whose logins (registry/loader/caller.h) may open what those of others do not.
  virtual void add_caller(const Variables& caller) { (void)caller; }
};

/// The registries behind URLs, with the settings that the configuration gives them; each is opened once, and again
/// after it has failed: as this process, or as a caller that was added, the one that succeeded last first, then those
/// that came last. `warn` is told what has to be waited for, and `patience` is how long.
std::unique_ptr<ChunkSource> registry_source(std::function<void(const std::string&)> warn, const Patience& patience);

/// What a registry answered are not the bytes of the layer.
class WrongBytes : public Error {
 public:
  explicit WrongBytes(std::uint64_t chunk);
};

/// Whole chunks: `first` and those after it as far as `bytes` goes.
struct ChunkRequest {
  const RemoteBlob& blob;
  const ChunkDigests& digests;
  std::uint64_t first;
  std::span<std::byte> bytes;
};
struct ChunkRequestCalls {
  std::function<void(const Error&)> tell;  ///< of each attempt that fails
  std::function<bool()> wanted;            ///< asked before each attempt
};

/// Reads chunks and compares each with its digest. Each registry is asked up to three times (twice for wrong bytes),
/// all once before any of them again, and those that failed lately after the others; when all have failed the source is
/// asked for the registries anew. Throws what the last one said; WrongBytes when any of them had wrong bytes and none
/// had right ones.
void read_chunks(ChunkSource& source, OriginHealth& health, const ChunkRequest& request,
                 const ChunkRequestCalls& calls);

}  // namespace dsec::registry
