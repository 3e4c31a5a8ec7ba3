#include "layers/overlaybd/layer_input.h"

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers::overlaybd {

UniqueFd open_input(const std::filesystem::path& path, int access) {
  // Without O_NONBLOCK a FIFO would hold us up until somebody writes to it.
  UniqueFd file = open_file(path, access | O_NONBLOCK | O_NOCTTY);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) throw system_error("stat " + quote(path.native()));
  if (!S_ISREG(facts.st_mode) && !S_ISBLK(facts.st_mode))
    throw failure(quote(path.native()) + " is neither a regular file nor a block device");
  return file;
}

}  // namespace dsec::layers::overlaybd
