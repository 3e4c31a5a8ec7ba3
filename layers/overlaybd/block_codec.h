#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsec::layers::overlaybd {

/// How blocks of a ZFile are compressed; the numbers are those of its header (zfile/compressor.h). Any thread may call
/// these functions.
enum class Compression : std::uint8_t { Lz4 = 1, Zstd = 2 };

std::string_view to_string(Compression compression);
/// What a block of `size` bytes can become at most.
std::size_t largest_block(Compression compression, std::size_t size);
/// Replaces `packed` by the compressed block.
void compress_block(Compression compression, std::string_view block, std::string& packed);
/// Whether `packed` unpacks to exactly `size` bytes, which are in `block` then.
bool unpack_block(Compression compression, std::string_view packed, char* block, std::size_t size);

}  // namespace dsec::layers::overlaybd
