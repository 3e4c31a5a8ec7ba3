#include "layers/mount/range_lock.h"

#include <fcntl.h>

#include <cerrno>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers {

RangeLock::RangeLock(const std::filesystem::path& path, std::uint64_t byte, Mode mode, Wait wait) {
  UniqueFd fd = open_file(path, O_RDWR | O_CREAT, 0600);
  struct flock range {};
  range.l_type = mode == Mode::Exclusive ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(byte);
  range.l_len = 1;
  while (::fcntl(fd.get(), wait == Wait::Yes ? F_OFD_SETLKW : F_OFD_SETLK, &range) != 0) {
    if (wait == Wait::No && (errno == EAGAIN || errno == EACCES)) return;
    if (errno != EINTR) throw system_error("lock " + quote(path.native()));
  }
  fd_ = std::move(fd);
}

}  // namespace dsec::layers
