#include "core/base/digest_of_part.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/base/error.h"

namespace dsec {

Digest digest_of_part(int fd, std::uint64_t size) {
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  for (std::uint64_t offset = 0; offset < size;) {
    const ssize_t got =
        ::pread(fd, buffer.data(), std::min<std::uint64_t>(buffer.size(), size - offset), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read file for its digest");
    if (got == 0) break;
    hash.update(buffer.data(), static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return hash.finish();
}

}  // namespace dsec
