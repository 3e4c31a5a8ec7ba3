#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "core/base/unique_fd.h"
#include "registry/loader/chunk_map.h"
#include "registry/loader/served_name.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry {

class ChunkCache;

/// Takes what was just read of a file out of the page cache: who asked for it keeps it in memory, and once is enough.
void let_go_of(int file, std::uint64_t offset, std::uint64_t size) noexcept;

/// Whose place a chunk may take in a full cache: that of any that was not read lately, or only that of blobs that
/// nothing has open.
enum class Room { OfAny, OfUnused };

/// The chunks of one blob that are in the cache. What it reads has been verified: on the way in, or, when another boot
/// wrote it, before it is read first. Thread-safe.
class CachedBlob {
 public:
  ~CachedBlob();
  CachedBlob(const CachedBlob&) = delete;

  /// Fills `bytes` from `offset`; false when not all of it is here.
  bool read(std::uint64_t offset, std::span<std::byte> bytes);
  bool has(std::uint64_t chunk);
  /// Keeps a whole chunk that was verified; false when there is no room for it.
  bool write(std::uint64_t chunk, std::span<const std::byte> bytes, Room room = Room::OfAny);
  std::uint64_t present_bytes();
  bool complete();
  /// The file of the data. While it is pinned nothing of it is dropped; false when not all of the blob is here, after
  /// looking at chunks that another boot wrote.
  const std::filesystem::path& file() const noexcept { return data_path_; }
  bool pin();
  void unpin();
  /// After its file has been moved elsewhere: it stays readable through this object, and the cache does not count it.
  void release();

 private:
  friend class ChunkCache;
  CachedBlob(ChunkCache& cache, const ServedName& blob, const ChunkDigests& digests);
  void open_files();
  void start_anew();
  bool check_old(std::uint64_t chunk);
  void check_all_old();
  bool forget(std::uint64_t chunk);
  void trust_when_checked();
  bool store_bit(std::uint64_t chunk);
  std::uint64_t drop_unread(std::uint64_t wanted);

  ChunkCache& cache_;
  const ChunkDigests& digests_;
  const std::filesystem::path data_path_, map_path_;
  // Shared by who reads, exclusive for who makes a hole.
  std::shared_mutex holes_;
  std::mutex mutex_;  ///< of what follows
  UniqueFd data_, map_file_;
  ChunkMap map_;
  std::vector<bool> checked_, read_lately_;
  std::uint64_t hand_ = 0;  ///< of the clock that finds what was not read lately
  bool pinned_ = false, released_ = false;
};

/// cache/chunks below a home: chunks of blobs, up to a limit that all share. One process at a time.
class ChunkCache {
 public:
  /// `limit`: bytes. What cannot be made or read of it is as if there was no cache.
  ChunkCache(std::filesystem::path directory, std::uint64_t limit);

  /// `digests` must outlive what is returned.
  std::shared_ptr<CachedBlob> open(const ServedName& blob, const ChunkDigests& digests);
  std::uint64_t bytes() const noexcept { return bytes_.load(); }

 private:
  friend class CachedBlob;
  /// Room for so many bytes: what nothing has open goes first, oldest first. False when there is none.
  bool make_room(std::uint64_t bytes, Room room);
  std::uint64_t drop_oldest_unused();
  void full();

  const std::filesystem::path directory_;
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::int64_t> full_until_{0};  ///< steady clock, ns: no writing before
  std::mutex mutex_;                         ///< of open_
  std::list<std::weak_ptr<CachedBlob>> open_;
};

}  // namespace dsec::registry
