#include "layers/overlaybd/new_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace dsec::layers::overlaybd {
namespace {

Error taken(const std::filesystem::path& path) {
  return usage_error(quote(path.native()) + " exists").hint("remove it, or give another name");
}

// False when something has the name. Some network filesystems know only one of the two.
bool name_once(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS)
    if (::link(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EEXIST) return false;
  throw system_error("rename " + quote(from.native()) + " to " + quote(to.native()));
}

}  // namespace

void refuse_existing(const std::filesystem::path& path) {
  if (std::filesystem::exists(std::filesystem::symlink_status(path))) throw taken(path);
}

void publish_new(TempFile& file, const std::filesystem::path& target) {
  if (::fsync(file.fd()) != 0) throw system_error("fsync " + quote(file.path().native()));
  if (!name_once(file.path(), target)) throw taken(target);
  sync_directory(target.has_parent_path() ? target.parent_path() : std::filesystem::path("."));
}

}  // namespace dsec::layers::overlaybd
