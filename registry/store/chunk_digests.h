#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/digest.h"

namespace dsec::registry {

/// A chunks blob holds one raw sha256 per so many bytes of data (man/dsec-layer-manifest.5.md).
inline constexpr std::size_t kChunkSize = 256 << 10;
inline constexpr std::size_t kRawDigestSize = 32;

/// The 32 bytes of a digest.
std::string raw_digest(const Digest& digest);
Digest digest_from_raw(std::string_view raw);

constexpr std::uint64_t chunks_of(std::uint64_t size) { return (size + kChunkSize - 1) / kChunkSize; }

/// The digests of a blob's chunks.
class ChunkDigests {
 public:
  /// `raw`: a chunks blob. Throws Error when it is not about a blob of `size` bytes.
  ChunkDigests(std::string raw, std::uint64_t size);

  std::uint64_t blob_size() const noexcept { return size_; }
  std::uint64_t count() const noexcept { return chunks_of(size_); }
  /// The last one may be shorter than the others.
  std::size_t size_of(std::uint64_t chunk) const noexcept;
  /// Whether `bytes` are those of the chunk.
  bool fits(std::uint64_t chunk, std::span<const std::byte> bytes) const;

 private:
  const std::string raw_;
  const std::uint64_t size_;
};

}  // namespace dsec::registry
