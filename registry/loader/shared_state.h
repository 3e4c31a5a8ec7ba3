#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/digest.h"
#include "core/base/unique_fd.h"
#include "registry/loader/served_name.h"

namespace dsec::registry {

/// The memory that outlives a server: what the kernel knows of it, and what it has been asked. It is a file in memory
/// that the holder keeps; everything in it is in the layout that `kVersion` names. One server at a time, which may be
/// killed at any instruction.
class SharedState {
 public:
  static constexpr std::uint32_t kVersion = 2;
  /// What the kernel wants to have room for when it is asked for a request (FUSE_MIN_READ_BUFFER), and how many
  /// requests can be under way.
  static constexpr std::size_t kSlotSize = 8192, kSlots = 384;
  /// Blobs in a life of the holder, of which no sandbox may be left but whose numbers the kernel may remember, and
  /// blobs that are mounted at a time. Only what is used of it is memory.
  static constexpr std::size_t kNodes = 1'000'000, kHandles = 65'536;

  /// Of the first blob; 1 is the root.
  static constexpr std::uint64_t kFirstInode = 2;

  /// A new one, for an instance of that name (at most 16 characters).
  static UniqueFd make(const std::string& instance);
  /// Whether it is of the layout that this release knows.
  static bool fits(int memory);
  /// Throws Error when another release made it.
  explicit SharedState(const UniqueFd& memory);
  ~SharedState();
  SharedState(const SharedState&) = delete;

  const std::string& instance() const noexcept { return instance_; }

  /// What INIT agreed on; 0 before.
  std::uint64_t flags() const noexcept;
  void set_flags(std::uint64_t flags) noexcept;

  /// A place for one request, into which it is read from the kernel: as long as its first four bytes are not zero it
  /// is under way. Waits for one that is free.
  char* take_slot();
  void free_slot(char* slot);
  /// Those that an earlier server had under way.
  std::vector<char*> slots_under_way();

  /// The inode of a blob, which it has from now on; empty when there are too many.
  std::optional<std::uint64_t> inode_of(const ServedName& blob);
  std::optional<ServedName> blob_of(std::uint64_t inode) const;
  /// An open file of a blob, made of the number that the kernel gave the request for it: the same twice is one.
  static std::uint64_t handle_for(std::uint64_t unique, std::uint64_t inode) noexcept;
  /// False when there are too many.
  bool add_handle(std::uint64_t handle);
  void drop_handle(std::uint64_t handle);
  bool is_open(std::uint64_t inode) const;
  std::size_t handles() const;
  /// Bytes of the blob that came from registries, whichever server asked for them.
  void add_fetched(std::uint64_t inode, std::uint64_t bytes);
  std::uint64_t fetched(std::uint64_t inode) const;
  /// Where that number stands in the memory.
  static std::uint64_t place_of_fetched(std::uint64_t inode) noexcept;
  std::vector<std::uint64_t> inodes() const;

 private:
  struct Layout;
  Layout* layout_;
  std::string instance_;
  mutable std::mutex mutex_;
  std::vector<char*> free_;
  std::unordered_map<std::string, std::uint64_t> inodes_;  ///< by the digests of blob and chunks, raw
  std::condition_variable freed_;
};

}  // namespace dsec::registry
