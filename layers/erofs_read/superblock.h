#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/erofs_read/meta_reader.h"

namespace dsec::layers {

/// What the superblock says, checked.
struct ErofsSuperblock {
  std::uint32_t block_bits = 0;  ///< log2 of the block size in bytes
  std::uint64_t root_nid = 0, packed_nid = 0;
  std::uint64_t inodes_address = 0;  ///< bytes; nid 0 lies there
  std::uint64_t xattrs_address = 0;  ///< bytes; shared xattr 0 lies there
  std::uint64_t epoch = 0;           ///< seconds; mtime of compact inodes is relative to it
  std::uint32_t fixed_nanoseconds = 0;
  std::uint32_t incompatible = 0, compatible = 0;  ///< feature bits
  std::uint32_t prefix_count = 0;
  std::uint64_t prefix_address = 0;  ///< bytes, in the metadata or in the packed inode
  /// Of the extra device; absent when there is none.
  std::optional<std::uint64_t> device_blocks;
  std::uint64_t device_address = 0;  ///< first block of the extra device in the image's own address space; 0: none

  std::uint64_t block_size() const noexcept { return 1ull << block_bits; }
  bool has_fragments() const noexcept { return (incompatible & 0x20) != 0; }
  bool plain_prefixes() const noexcept { return (compatible & 0x10) != 0; }
};

ErofsSuperblock read_superblock(MetaReader& meta);

}  // namespace dsec::layers
