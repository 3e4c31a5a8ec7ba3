#include "layers/overlaybd/write_at.h"

#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace dsec::layers::overlaybd {

void write_at(int fd, std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw system_error("write");
    bytes.remove_prefix(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
}

}  // namespace dsec::layers::overlaybd
