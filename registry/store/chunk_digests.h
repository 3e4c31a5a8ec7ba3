#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/digest.h"

namespace dsec::registry {

/// A chunks blob holds one raw sha256 for each chunk of data (man/dsec-layer-manifest.5.md): so large is one in layers
/// that are made now, and so large in others.
inline constexpr std::size_t kChunkSize = 64 << 10, kLargeChunkSize = 256 << 10;
inline constexpr std::size_t kRawDigestSize = 32;
/// A loader keeps those of a blob in memory; these are of one of 128 GiB.
inline constexpr std::uint64_t kLargestChunkDigests = 64ull << 20;

/// The 32 bytes of a digest.
std::string raw_digest(const Digest& digest);
Digest digest_from_raw(std::string_view raw);

constexpr std::uint64_t chunks_of(std::uint64_t size, std::size_t chunk_size) {
  return size / chunk_size + (size % chunk_size != 0);
}
/// How large the chunks of `size` bytes of data are whose chunks blob has so many bytes; empty when that is of no such
/// data.
std::optional<std::size_t> chunk_size_of(std::uint64_t size, std::uint64_t chunks_blob_size);

/// The digests of a blob's chunks.
class ChunkDigests {
 public:
  /// `raw`: a chunks blob. Throws Error when it is not about a blob of `size` bytes.
  ChunkDigests(std::string raw, std::uint64_t size);

  std::uint64_t blob_size() const noexcept { return size_; }
  std::size_t chunk_size() const noexcept { return chunk_size_; }
  std::uint64_t count() const noexcept { return chunks_of(size_, chunk_size_); }
  /// The last one may be shorter than the others.
  std::size_t size_of(std::uint64_t chunk) const noexcept;
  /// Whether `bytes` are those of the chunk.
  bool fits(std::uint64_t chunk, std::span<const std::byte> bytes) const;

 private:
  const std::string raw_;
  const std::uint64_t size_;
  std::size_t chunk_size_ = kChunkSize;
};

}  // namespace dsec::registry
