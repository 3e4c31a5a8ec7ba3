#include "registry/store/chunk_digests.h"

#include <algorithm>

#include "core/base/error.h"

namespace dsec::registry {

std::string raw_digest(const Digest& digest) {
  std::string bytes;
  const std::string& hex = digest.hex();
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return bytes;
}

Digest digest_from_raw(std::string_view raw) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : raw) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return Digest::parse(hex);
}

std::optional<std::size_t> chunk_size_of(std::uint64_t size, std::uint64_t chunks_blob_size) {
  for (const std::size_t chunk_size : {kChunkSize, kLargeChunkSize})
    if (chunks_of(size, chunk_size) * kRawDigestSize == chunks_blob_size) return chunk_size;
  return std::nullopt;
}

ChunkDigests::ChunkDigests(std::string raw, std::uint64_t size) : raw_(std::move(raw)), size_(size) {
  const auto chunk_size = chunk_size_of(size, raw_.size());
  if (!chunk_size)
    throw failure("its chunk digests are " + std::to_string(raw_.size() / kRawDigestSize) + ", and its data has " +
                  std::to_string(chunks_of(size, kChunkSize)) + " chunks");
  chunk_size_ = *chunk_size;
}

std::size_t ChunkDigests::size_of(std::uint64_t chunk) const noexcept {
  return static_cast<std::size_t>(std::min<std::uint64_t>(chunk_size_, size_ - chunk * chunk_size_));
}

bool ChunkDigests::fits(std::uint64_t chunk, std::span<const std::byte> bytes) const {
  if (chunk >= count() || bytes.size() != size_of(chunk)) return false;
  const Digest found = Digest::of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return raw_digest(found) == std::string_view(raw_).substr(chunk * kRawDigestSize, kRawDigestSize);
}

}  // namespace dsec::registry
