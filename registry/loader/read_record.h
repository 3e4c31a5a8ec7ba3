#pragma once

#include <cstdint>
#include <vector>

#include "registry/layout/prefetch_list.h"

namespace dsec::registry {

/// Which chunks of a blob were read, in the order in which they first were. Not thread-safe.
class ReadRecord {
 public:
  explicit ReadRecord(std::uint64_t chunks) : seen_(chunks) {}

  /// Of a read of [first, last], which the blob has.
  void note(std::uint64_t first, std::uint64_t last);
  /// How many chunks were read at all.
  std::uint64_t count() const noexcept { return count_; }
  const std::vector<ChunkRun>& runs() const noexcept { return runs_; }

 private:
  std::vector<bool> seen_;
  std::vector<ChunkRun> runs_;
  std::uint64_t count_ = 0;
};

}  // namespace dsec::registry
