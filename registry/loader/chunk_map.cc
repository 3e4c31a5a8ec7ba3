#include "registry/loader/chunk_map.h"

#include <algorithm>
#include <bit>

#include "core/base/files.h"
#include "registry/store/chunk_digests.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kMagic = "dsecmap1";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kVersionAt = 8, kChunkAt = 12, kSizeAt = 16, kBootAt = 64, kBitsAt = 128, kBootSize = 36;

template <typename Number>
void put(std::string& bytes, std::size_t at, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) bytes[at + i] = static_cast<char>(number >> (8 * i) & 0xff);
}

template <typename Number>
Number get(std::string_view bytes, std::size_t at) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i)
    number |= static_cast<Number>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return number;
}

bool all_zero(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

ChunkMap::ChunkMap(std::uint64_t blob_size, std::size_t chunk_size, std::string boot_id)
    : size_(blob_size),
      chunk_size_(chunk_size),
      chunks_(chunks_of(blob_size, chunk_size)),
      boot_id_(std::move(boot_id)),
      bits_((chunks_ + 7) / 8) {
  boot_id_.resize(kBootSize);
}

std::uint64_t ChunkMap::file_size() const noexcept { return kBitsAt + bits_.size(); }
std::uint64_t ChunkMap::largest_file(std::uint64_t blob_size) noexcept {
  return kBitsAt + (chunks_of(blob_size, kChunkSize) + 7) / 8;
}
std::uint64_t ChunkMap::byte_offset(std::uint64_t chunk) noexcept { return kBitsAt + chunk / 8; }

std::string ChunkMap::bytes() const {
  std::string bytes(kBitsAt, '\0');
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  put(bytes, kVersionAt, kVersion);
  put(bytes, kChunkAt, static_cast<std::uint32_t>(chunk_size_));
  put(bytes, kSizeAt, size_);
  std::copy(boot_id_.begin(), boot_id_.end(), bytes.begin() + kBootAt);
  bytes.append(bits_.begin(), bits_.end());
  return bytes;
}

std::optional<ChunkMap> ChunkMap::parse(std::string_view bytes, std::uint64_t blob_size) {
  if (bytes.size() < kBitsAt || !bytes.starts_with(kMagic) || get<std::uint32_t>(bytes, kVersionAt) != kVersion ||
      get<std::uint64_t>(bytes, kSizeAt) != blob_size || !all_zero(bytes.substr(kSizeAt + 8, kBootAt - kSizeAt - 8)) ||
      !all_zero(bytes.substr(kBootAt + kBootSize, kBitsAt - kBootAt - kBootSize)))
    return std::nullopt;
  const std::size_t chunk_size = get<std::uint32_t>(bytes, kChunkAt);
  if (chunk_size != kChunkSize && chunk_size != kLargeChunkSize) return std::nullopt;
  // Not a map of what it claims to be of before the file is as large as one: that much is taken from memory.
  if (bytes.size() != kBitsAt + (chunks_of(blob_size, chunk_size) + 7) / 8) return std::nullopt;
  ChunkMap map(blob_size, chunk_size, std::string(bytes.substr(kBootAt, kBootSize)));
  for (std::size_t i = 0; i < map.bits_.size(); ++i) {
    map.bits_[i] = static_cast<std::uint8_t>(bytes[kBitsAt + i]);
    map.present_ += static_cast<std::uint64_t>(std::popcount(map.bits_[i]));
  }
  // No bit for what is behind the end.
  if (map.chunks_ % 8 != 0 && map.bits_.back() >> (map.chunks_ % 8) != 0) return std::nullopt;
  return map;
}

std::uint64_t ChunkMap::present_bytes() const noexcept {
  return std::min<std::uint64_t>(present_ * chunk_size_, size_);
}

void ChunkMap::set(std::uint64_t chunk, bool here) noexcept {
  if (chunk >= chunks_ || has(chunk) == here) return;
  bits_[chunk / 8] = static_cast<std::uint8_t>(bits_[chunk / 8] ^ 1u << (chunk % 8));
  present_ += here ? 1 : std::uint64_t(-1);
}

const std::string& boot_id() {
  static const std::string id = [] {
    std::string text = read_file("/proc/sys/kernel/random/boot_id", 64);
    text.resize(kBootSize);
    return text;
  }();
  return id;
}

}  // namespace dsec::registry
