#pragma once

#include <cstdint>

#include "core/base/digest.h"

namespace dsec {

/// Of the first `size` bytes of an open file, or of all when it is shorter; the file offset is not moved. Throws Error.
Digest digest_of_part(int fd, std::uint64_t size);

}  // namespace dsec
