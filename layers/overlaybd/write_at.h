#pragma once

#include <cstdint>
#include <string_view>

namespace dsec::layers::overlaybd {

/// Writes all bytes at this place of a file, retrying short writes; throws Error.
void write_at(int fd, std::uint64_t offset, std::string_view bytes);

}  // namespace dsec::layers::overlaybd
