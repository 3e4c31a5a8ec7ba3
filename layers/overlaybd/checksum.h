#pragma once

#include <string_view>

#include "core/base/crc32c.h"

namespace dsec::layers::overlaybd {

/// OverlayBD's checksums are CRC-32C without the inversions at begin and end: its tools' crc32c_extend (crc32c.cpp).
inline std::uint32_t plain_crc32c(std::uint32_t seed, std::string_view bytes) {
  return ~crc32c(~seed, bytes.data(), bytes.size());
}

/// The seed for blocks of a ZFile (zfile.cpp, NOI_WELL_KNOWN_PRIME); header, trailer and lengths have 0.
inline constexpr std::uint32_t kBlockSeed = 100007;

}  // namespace dsec::layers::overlaybd
