#pragma once

#include <cstdint>
#include <optional>

#include "layers/overlaybd/random_bytes.h"

namespace dsec::layers::overlaybd {

/// Bytes before a file in the archive that the project's tools make (tar/tar_file.cpp).
inline constexpr std::uint64_t kTarPrologue = 3 * 512;

/// Where the one file of an archive lies, bytes. Nothing when these bytes do not begin as an archive does; throws Error
/// for headers that make no sense.
struct TarPart {
  std::uint64_t offset, size;
};
std::optional<TarPart> find_in_tar(const RandomBytes& bytes);

/// Makes an archive of a file that `size` bytes have been written to from byte kTarPrologue on. Returns the archive's
/// size, bytes.
std::uint64_t finish_tar(int fd, std::uint64_t size);

}  // namespace dsec::layers::overlaybd
