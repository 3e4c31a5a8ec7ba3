#include "layers/overlaybd/zfile_header.h"

#include "core/base/little_endian.h"
#include "layers/overlaybd/checksum.h"

namespace dsec::layers::overlaybd {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic =
    "ZFile\0\1\0"
    "tuji.yyf@Alibaba"sv;
constexpr std::uint32_t kUsed = 96;  // bytes of the structure; sizeof(HeaderTrailer)
constexpr std::uint64_t kIsHeader = 1, kIsData = 2, kIsSealed = 4, kIsFinal = 8, kHasDigest = 16, kCompressedIndex = 32;
// Offsets of its fields.
constexpr std::size_t kUsedAt = 24, kDigestAt = 28, kFlagsAt = 32, kIndexOffsetAt = 40, kIndexCountAt = 48,
                      kOriginalSizeAt = 56, kIndexChecksumAt = 64, kBlockSizeAt = 72, kCompressionAt = 76,
                      kUseDictionaryAt = 78, kDictionarySizeAt = 84, kVerifyAt = 88;

std::uint32_t digest_of(std::string bytes) {
  put_u32(bytes, kDigestAt, 0);
  return plain_crc32c(0, bytes);
}

}  // namespace

std::optional<ZfileHeader> ZfileHeader::parse(std::string_view bytes, bool& intact) {
  if (bytes.size() != kSize || !bytes.starts_with(kMagic)) return std::nullopt;
  const Fields fields(bytes);
  const std::uint64_t flags = fields.u64(kFlagsAt);
  ZfileHeader header;
  header.is_header = (flags & kIsHeader) != 0;
  header.is_data = (flags & kIsData) != 0;
  header.is_sealed = (flags & kIsSealed) != 0;
  header.is_final = (flags & kIsFinal) != 0;
  header.has_digest = (flags & kHasDigest) != 0;
  header.compressed_index = (flags & kCompressedIndex) != 0;
  header.index_offset = fields.u64(kIndexOffsetAt);
  header.index_count = fields.u64(kIndexCountAt);
  header.original_size = fields.u64(kOriginalSizeAt);
  header.index_checksum = fields.u32(kIndexChecksumAt);
  header.block_size = fields.u32(kBlockSizeAt);
  header.compression = fields.u8(kCompressionAt);
  header.has_dictionary = fields.u8(kUseDictionaryAt) != 0 || fields.u32(kDictionarySizeAt) != 0;
  header.has_checksums = fields.u8(kVerifyAt) != 0;
  intact = !header.has_digest || fields.u32(kDigestAt) == digest_of(std::string(bytes));
  return header;
}

std::string ZfileHeader::bytes() const {
  std::string bytes(kSize, '\0');
  bytes.replace(0, kMagic.size(), kMagic);
  put_u32(bytes, kUsedAt, kUsed);
  put_u64(bytes, kFlagsAt,
          (is_header ? kIsHeader : 0) | (is_data ? kIsData : 0) | (is_sealed ? kIsSealed : 0) |
              (is_final ? kIsFinal : 0) | (has_digest ? kHasDigest : 0) | (compressed_index ? kCompressedIndex : 0));
  put_u64(bytes, kIndexOffsetAt, index_offset);
  put_u64(bytes, kIndexCountAt, index_count);
  put_u64(bytes, kOriginalSizeAt, original_size);
  put_u32(bytes, kIndexChecksumAt, index_checksum);
  put_u32(bytes, kBlockSizeAt, block_size);
  put_number(bytes, kCompressionAt, compression, 1);
  put_number(bytes, kVerifyAt, has_checksums ? 1 : 0, 1);
  if (has_digest) put_u32(bytes, kDigestAt, digest_of(bytes));
  return bytes;
}

}  // namespace dsec::layers::overlaybd
