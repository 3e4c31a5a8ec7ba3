#pragma once

#include <string>

#include "layers/source.h"

namespace dsec::layers {

/// The header blocks of `entry` as mkfs.erofs reads them: ustar where its fields suffice, a PAX header before it where
/// they do not. Its content, padded to 512 bytes, follows.
std::string tar_header_blocks(const Entry& entry);

/// The end of an archive.
std::string tar_end();

}  // namespace dsec::layers
