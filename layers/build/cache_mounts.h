#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "layers/dockerfile/run_mount.h"

namespace dsec::layers {

/// The folders behind RUN --mount=type=cache, in cache/mounts of the home: one for each id, `NAME/data`, with `NAME/id`
/// telling whose it is and when it was used last. Safe for any number of processes.
class CacheMounts {
 public:
  explicit CacheMounts(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// Nobody else has a locked or private one as long as it lives, and gc leaves it alone.
  struct Held {
    std::filesystem::path folder;
    FileLock lock;
  };
  /// Makes it when it is new, with the mount's owner and mode. A locked one is waited for; where a private one is in
  /// use there is another.
  Held hold(const dockerfile::RunMount& mount);

  struct Entry {
    std::string id;
    std::uint64_t bytes = 0;  ///< what `size` said
  };
  /// Removes what nobody uses and nobody has used for 30 days, or (`all`) whatever nobody uses; a dry run only tells.
  /// What could not be removed is told in `problems`.
  std::vector<Entry> prune(bool all, bool dry_run,
                           const std::function<std::uint64_t(const std::filesystem::path&)>& size,
                           std::vector<std::string>& problems);

 private:
  std::filesystem::path directory_;
};

}  // namespace dsec::layers
