#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::registry {

/// Which chunks of a blob a cache file has, as the file .map beside it says it; man/dsec-loader.7.md has the format. No
/// locking.
class ChunkMap {
 public:
  /// Of a blob that nothing is here of yet. `boot_id`: of the boot that writes it.
  ChunkMap(std::uint64_t blob_size, std::size_t chunk_size, std::string boot_id);
  /// Empty when `bytes` are not a map of a blob of that size, in chunks of any size, in every detail.
  static std::optional<ChunkMap> parse(std::string_view bytes, std::uint64_t blob_size);
  std::string bytes() const;

  std::size_t chunk_size() const noexcept { return chunk_size_; }
  std::uint64_t chunks() const noexcept { return chunks_; }
  std::uint64_t present() const noexcept { return present_; }
  std::uint64_t present_bytes() const noexcept;
  bool has(std::uint64_t chunk) const noexcept { return chunk < chunks_ && (bits_[chunk / 8] >> (chunk % 8) & 1) != 0; }
  void set(std::uint64_t chunk, bool here) noexcept;
  const std::string& boot_id() const noexcept { return boot_id_; }
  void set_boot_id(std::string boot_id) { boot_id_ = std::move(boot_id); }

  /// Where the bit of a chunk lies in the file, and the byte that it is in.
  static std::uint64_t byte_offset(std::uint64_t chunk) noexcept;
  std::uint8_t byte_of(std::uint64_t chunk) const noexcept { return bits_[chunk / 8]; }

  /// How large the file is, and how large it is at most, whatever the size of chunks.
  std::uint64_t file_size() const noexcept;
  static std::uint64_t largest_file(std::uint64_t blob_size) noexcept;

 private:
  std::uint64_t size_;
  std::size_t chunk_size_;
  std::uint64_t chunks_, present_ = 0;
  std::string boot_id_;
  std::vector<std::uint8_t> bits_;
};

/// Of this boot, 36 characters.
const std::string& boot_id();

}  // namespace dsec::registry
