#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "core/base/error.h"
#include "core/base/progress.h"
#include "core/base/unique_fd.h"
#include "core/model/layer_manifest.h"

namespace dsec::registry {

class LocalStore;
class Registry;

/// Where a publisher takes the bytes of blobs from. Nothing is verified here: whoever writes compares digests. Throws
/// Error.
class BlobContents {
 public:
  virtual ~BlobContents() = default;
  /// An open file with all of the blob from its start, for who has to read it more than once.
  virtual UniqueFd open(const Blob& blob) = 0;
  /// Writes the blob to `to`, from its start, and returns the digest of what came. `advance` is told the bytes done.
  virtual Digest copy(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance) = 0;
  /// That what came is another blob.
  virtual Error damaged(const Digest& found) const = 0;
};

/// What is used must outlive what is returned.
std::unique_ptr<BlobContents> contents_of(LocalStore& store);
/// Blobs that have to lie in a file are brought to a temporary one in `spool`, one at a time.
std::unique_ptr<BlobContents> contents_of(Registry& registry, std::filesystem::path spool, Progress& progress);

}  // namespace dsec::registry
