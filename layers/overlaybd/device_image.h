#pragma once

#include "core/base/progress.h"
#include "layers/overlaybd/stack.h"

namespace dsec::layers::overlaybd {

/// Writes the whole device to `fd`, from where its file position is. A regular file that ends there becomes a sparse
/// one; anything else is given every byte. Returns the bytes that were not zero, in blocks of 4096.
std::uint64_t write_image(const Stack& stack, int fd, Progress& progress);

}  // namespace dsec::layers::overlaybd
