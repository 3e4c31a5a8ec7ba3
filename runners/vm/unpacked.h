#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dsec::runners {

/// The content of a file, or of what it holds when it is compressed (gzip, bzip2, xz, lzma, lz4 or zstd, told by its
/// first bytes, not by its name). Throws Error, also when that is more than `limit` bytes.
std::string read_unpacked(const std::filesystem::path& path, std::uint64_t limit);

/// The same of bytes in memory; what follows the compressed data is passed over. Throws Error when they are none, or
/// are damaged or cut off.
std::string unpack(std::string_view bytes, std::uint64_t limit);

}  // namespace dsec::runners
