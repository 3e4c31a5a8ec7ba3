#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "layers/overlaybd/block_codec.h"

namespace dsec::layers::overlaybd {

/// Header or trailer of a ZFile (man dsec-overlaybd; zfile/zfile.cpp, CompressionFile::HeaderTrailer).
struct ZfileHeader {
  static constexpr std::size_t kSize = 512;  ///< bytes in a file
  /// Of a block before compression. Of these the project's reader fails at the largest when it does not shrink.
  static constexpr std::uint32_t kLeastBlock = 4096, kMostBlock = 65536, kMostWritten = 32768;

  bool is_header = true, is_data = true, is_sealed = false;
  bool is_final = false;   ///< a header that has what the trailer has
  bool has_digest = true;  ///< of itself and of the lengths
  bool compressed_index = false;
  std::uint64_t index_offset = 0;   ///< of the lengths, bytes
  std::uint64_t index_count = 0;    ///< blocks
  std::uint64_t original_size = 0;  ///< bytes
  std::uint32_t index_checksum = 0;
  std::uint32_t block_size = kLeastBlock;  ///< bytes before compression
  std::uint8_t compression = 0;            ///< as stored: it may be one that is not known
  bool has_dictionary = false;
  bool has_checksums = true;  ///< behind each block

  /// From its kSize bytes; nothing when they do not begin as one does. `intact` tells whether its checksum is right.
  static std::optional<ZfileHeader> parse(std::string_view bytes, bool& intact);
  std::string bytes() const;
};

}  // namespace dsec::layers::overlaybd
