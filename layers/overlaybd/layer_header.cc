#include "layers/overlaybd/layer_header.h"

#include "core/base/error.h"
#include "core/base/little_endian.h"
#include "layers/overlaybd/uuid.h"

namespace dsec::layers::overlaybd {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic =
    "LSMT\0\1\2\0"
    "\x65\x7E\x63\xD2\x94\x44\x08\x4C\xA2\xD2\xC8\xEC\x4F\xCF\xAE\x8A"sv;
constexpr std::uint32_t kUsed = 390;  // bytes of the structure; sizeof(HeaderTrailer)
constexpr std::uint32_t kIsHeader = 1, kIsData = 2, kIsSealed = 4, kIsSparse = 16;
// Offsets of its fields.
constexpr std::size_t kUsedAt = 24, kFlagsAt = 28, kIndexOffsetAt = 32, kIndexCountAt = 40, kSizeAt = 48, kUuidAt = 56,
                      kParentAt = 93, kVersionAt = 132, kMessageAt = 134;

}  // namespace

std::optional<LayerHeader> LayerHeader::parse(std::string_view bytes) {
  if (bytes.size() != kSize || !bytes.starts_with(kMagic)) return std::nullopt;
  const Fields fields(bytes);
  const std::uint32_t flags = fields.u32(kFlagsAt);
  LayerHeader header;
  header.is_header = (flags & kIsHeader) != 0;
  header.is_data = (flags & kIsData) != 0;
  header.is_sealed = (flags & kIsSealed) != 0;
  header.is_sparse = (flags & kIsSparse) != 0;
  header.index_offset = fields.u64(kIndexOffsetAt);
  header.index_count = fields.u64(kIndexCountAt);
  header.size = fields.u64(kSizeAt);
  header.uuid = stored_uuid(bytes.substr(kUuidAt, 37));
  header.parent = stored_uuid(bytes.substr(kParentAt, 37));
  header.message = bytes.substr(kMessageAt, kMaxMessage);
  header.message.erase(header.message.find_last_not_of('\0') + 1);
  return header;
}

std::string LayerHeader::bytes() const {
  if (message.size() > kMaxMessage)
    throw usage_error("the message has " + std::to_string(message.size()) + " bytes, and a layer holds " +
                      std::to_string(kMaxMessage));
  std::string bytes(kSize, '\0');
  bytes.replace(0, kMagic.size(), kMagic);
  put_u32(bytes, kUsedAt, kUsed);
  put_u32(bytes, kFlagsAt,
          (is_header ? kIsHeader : 0) | (is_data ? kIsData : 0) | (is_sealed ? kIsSealed : 0) |
              (is_sparse ? kIsSparse : 0));
  put_u64(bytes, kIndexOffsetAt, index_offset);
  put_u64(bytes, kIndexCountAt, index_count);
  put_u64(bytes, kSizeAt, size);
  bytes.replace(kUuidAt, 36, shown_uuid(uuid));
  bytes.replace(kParentAt, 36, shown_uuid(parent));
  bytes[kVersionAt] = bytes[kVersionAt + 1] = 1;
  bytes.replace(kMessageAt, message.size(), message);
  return bytes;
}

}  // namespace dsec::layers::overlaybd
