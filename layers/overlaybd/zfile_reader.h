#pragma once

#include <memory>
#include <optional>

#include "layers/overlaybd/random_bytes.h"
#include "layers/overlaybd/zfile_header.h"

namespace dsec::layers::overlaybd {

/// What is told of a compressed file.
struct ZfileFacts {
  Compression compression = Compression::Lz4;
  std::uint32_t block_size = 0;  ///< bytes
  bool has_checksums = false;
};

/// Whether these bytes begin as a ZFile does.
bool is_zfile(const RandomBytes& bytes);

/// The file in a ZFile. Header, trailer and lengths are verified here; each block is when it is read: by its checksum
/// where it has one, and by what it unpacks to. Throws Error for anything that man dsec-overlaybd refuses.
std::unique_ptr<RandomBytes> open_zfile(std::unique_ptr<RandomBytes> packed, ZfileFacts& facts);

}  // namespace dsec::layers::overlaybd
