#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "registry/gc/working_layers.h"

namespace dsec::registry {

struct EvictOptions {
  std::uint64_t to = 0;  ///< bytes that the store may keep
  bool dry_run = false;
  bool offline = false;  ///< no registry is asked, and so nothing evicted
  /// Unmounts every layer image whose meta digest is not among those given; absent: nothing is mounted.
  std::function<void(std::span<const Digest> needed)> unmount_others;
};

/// The data of one image that has gone.
struct Evicted {
  std::string layer;  ///< one that has it: a tag, or "base/debian 3f2c9d1e0a1b"
  Digest blob;
  std::uint64_t bytes = 0;
  std::string registry;  ///< URL it can be had from again
};

struct EvictResult {
  std::vector<Evicted> evicted;  ///< in a dry run: would be
  std::uint64_t before = 0, after = 0;
  /// Of what stays, by what holds it: "sandbox", "only-here", …; "metadata" of layers that could go, "away" for data
  /// whose registries do not have it or cannot be reached now, "unnamed" for what gc would take.
  std::map<std::string, std::uint64_t> held;
  std::vector<std::string> warnings;
};

/// Bytes of all blob files of the store.
std::uint64_t store_bytes(LocalStore& store);

/// Removes data of layers that can be had again, those first that were used longest ago, until the store has no more
/// bytes than it may keep. The layers stay known, with metadata and tags, and their data comes from a registry when it
/// is read; each one is asked before whether it still has it. What working_layers() tells to be held stays. Safe while
/// sandboxes, imports and gc run.
EvictResult evict(LocalStore& store, const EvictOptions& options, Progress& progress);

/// "30 GiB of layers of sandboxes, 2 GiB pinned": what holds the rest, the most first.
std::string held_text(const EvictResult& result);

}  // namespace dsec::registry
