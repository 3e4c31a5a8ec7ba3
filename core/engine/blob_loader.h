#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/digest.h"
#include "core/base/unique_fd.h"

namespace dsec::engine {

/// Serves blobs that are in no file of this host, or not wholly: the kernel reads them through a file all the same.
/// Any number of processes may use the one of a home, from any thread.
class BlobLoader {
 public:
  virtual ~BlobLoader() = default;

  /// As long as it lives, what serves does not end for lack of work.
  class Visit {
   public:
    virtual ~Visit() = default;
    /// Names what serves now: files that another one opened are dead.
    virtual const std::string& instance() const = 0;
    /// A file with the blob's bytes, for reading, each compared with the chunk digests in the blob `chunks`; it is
    /// served for as long as the kernel has it open. Throws Error for a blob that is not loaded on demand.
    virtual UniqueFd open(const Digest& blob, const Digest& chunks) = 0;
    /// For reading: a file in which, at `counter()` of a blob, a 64-bit number says how many bytes of it registries
    /// have given. It tells so for as long as anything serves the blob.
    virtual UniqueFd counters() = 0;
    virtual std::uint64_t counter(const Digest& blob, const Digest& chunks) = 0;
  };
  /// Starts what serves where it is not there. Throws Error.
  virtual std::unique_ptr<Visit> visit() = 0;
  /// The instance that runs; empty when none does.
  virtual std::string running() = 0;
  /// Ends what serves when the kernel has none of its files open.
  virtual void release() = 0;
};

}  // namespace dsec::engine
