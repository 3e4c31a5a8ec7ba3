#include "layers/erofs_read/superblock.h"

#include <array>

namespace dsec::layers {
namespace {

constexpr std::uint64_t kOffset = 1024;
constexpr std::size_t kSize = 128;
constexpr std::uint32_t kMagic = 0xE0F5E1E2;
constexpr std::uint32_t kHasChecksum = 0x1;
// 0padding, compression configurations, chunks, devices, tail packing, fragments, xattr prefixes. Not: 48-bit addresses
// (0x80) and compressed metadata (0x100), which mkfs.erofs writes only when asked.
constexpr std::uint32_t kKnownFeatures = 0x7F;
constexpr std::uint32_t kDeviceTable = 0x8;
constexpr std::size_t kDeviceSlot = 128;

// CRC-32C (Castagnoli, reflected) without final inversion, as the kernel's crc32c().
std::uint32_t crc32c(std::uint32_t crc, std::string_view bytes) {
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return crc;
}

void verify_checksum(MetaReader& meta, std::uint32_t block_bits, std::uint32_t expected) {
  const std::uint64_t block = 1ull << block_bits;
  const std::uint64_t end = block > kOffset ? block : kOffset + block;
  // The register's state after the magic and a checksum of zero.
  if (crc32c(0x5045B54A, meta.read(kOffset + 8, end - kOffset - 8)) != expected)
    throw meta.damaged("the checksum of its superblock is wrong");
}

}  // namespace

ErofsSuperblock read_superblock(MetaReader& meta) {
  if (meta.size() < kOffset + kSize) throw failure("image " + meta.name() + " is too short for EROFS");
  const std::string bytes = meta.read(kOffset, kSize);
  const Fields fields(bytes);
  if (fields.u32(0) != kMagic) throw failure("image " + meta.name() + " is no EROFS image");
  ErofsSuperblock super;
  super.block_bits = fields.u8(12);
  if (super.block_bits < 9 || super.block_bits > 16)
    throw meta.damaged("its block size is 2^" + std::to_string(super.block_bits) + " bytes");
  super.compatible = fields.u32(8);
  super.incompatible = fields.u32(80);
  if (const std::uint32_t unknown = super.incompatible & ~kKnownFeatures)
    throw failure("image " + meta.name() + " uses EROFS features that this dsec does not know (bits " +
                  std::to_string(unknown) + ")");
  if (super.compatible & kHasChecksum) verify_checksum(meta, super.block_bits, fields.u32(4));
  if (fields.u8(90) != 0) throw meta.damaged("its directory blocks have another size than its blocks");
  super.root_nid = fields.u16(14);
  super.epoch = fields.u64(24);
  super.fixed_nanoseconds = fields.u32(32);
  super.inodes_address = static_cast<std::uint64_t>(fields.u32(40)) << super.block_bits;
  super.xattrs_address = static_cast<std::uint64_t>(fields.u32(44)) << super.block_bits;
  super.prefix_count = fields.u8(91);
  super.prefix_address = static_cast<std::uint64_t>(fields.u32(92)) * 4;
  super.packed_nid = fields.u64(96);
  const std::uint32_t devices = super.incompatible & kDeviceTable ? fields.u16(86) : 0;
  if (devices > 1)
    throw failure("image " + meta.name() + " spreads over " + std::to_string(devices) + " devices; one is supported");
  if (devices == 1) {
    const std::string slot = meta.read(static_cast<std::uint64_t>(fields.u16(88)) * kDeviceSlot, kDeviceSlot);
    super.device_blocks = Fields(slot).u32(64);
    super.device_address = Fields(slot).u32(68);
  }
  return super;
}

}  // namespace dsec::layers
