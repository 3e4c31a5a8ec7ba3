#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "registry/layout/prefetch_list.h"

namespace dsec::registry {

class LoadedBlob;

/// What is fetched although nobody waits for it: of each blob what a list names, in the order of the list, and then the
/// rest, where that is asked for. Blobs take turns. Not thread-safe.
class Background {
 public:
  struct Work {
    std::shared_ptr<LoadedBlob> blob;
    std::uint64_t first, count;
  };
  struct Calls {
    std::function<bool(const LoadedBlob&)> may_ask;                      ///< whether its registry may be asked now
    std::function<bool(const LoadedBlob&, std::uint64_t chunk)> needed;  ///< nobody has it or fetches it
  };

  /// Of a list that fits the blob.
  void list(const std::shared_ptr<LoadedBlob>& blob, const std::vector<ChunkRun>& runs);
  /// All of it, which is so many chunks.
  void fill(const std::shared_ptr<LoadedBlob>& blob, std::uint64_t chunks);
  void forget(const LoadedBlob& blob);
  /// What to fetch next, in one request.
  std::optional<Work> next(const Calls& calls);

 private:
  struct Entry {
    std::shared_ptr<LoadedBlob> blob;
    std::deque<ChunkRun> listed = {};
    ChunkRun rest = {};
  };
  Entry& entry_of(const std::shared_ptr<LoadedBlob>& blob);
  static std::optional<ChunkRun> take(Entry& entry, const Calls& calls);

  std::deque<Entry> entries_;
};

}  // namespace dsec::registry
