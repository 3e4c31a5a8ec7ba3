#include "registry/directory/new_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/base/error.h"
#include "core/engine/sandbox_id.h"
#include "registry/directory/registry_root.h"

namespace dsec::registry {

NewFile::NewFile(int directory, const std::string& publisher)
    : directory_(directory), name_(".tmp-" + publisher + "-" + engine::random_id(12)) {
  fd_ = UniqueFd(::openat(directory_, name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd_) throw system_error("make a temporary file in the registry");
}

NewFile::~NewFile() {
  if (!name_.empty()) ::unlinkat(directory_, name_.c_str(), 0);
}

void NewFile::flush() {
  if (!fd_) return;
  // Read-only for everybody whom the umask lets read it: no file of a registry is ever written again.
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0 || ::fchmod(fd_.get(), status.st_mode & 0444) != 0)
    throw system_error("chmod a new file");
  if (::fsync(fd_.get()) != 0) throw system_error("fsync a new file");
  if (::close(fd_.release()) != 0) throw system_error("close a new file");
}

bool NewFile::name_once(const std::string& name) {
  flush();
  bool named = ::linkat(directory_, name_.c_str(), directory_, name.c_str(), 0) == 0;
  if (!named && errno != EEXIST) {
    // Filesystems without hard links: between looking and renaming another publisher may name the same bytes.
    struct stat status;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK)
      throw system_error("link a new file to " + quote(name));
    if (::fstatat(directory_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (::renameat(directory_, name_.c_str(), directory_, name.c_str()) != 0)
        throw system_error("rename a new file to " + quote(name));
      name_.clear();
      sync_directory_fd(directory_);
      return true;
    }
  }
  ::unlinkat(directory_, name_.c_str(), 0);
  name_.clear();
  sync_directory_fd(directory_);
  return named;
}

void NewFile::replace(const std::string& name) {
  flush();
  if (::renameat(directory_, name_.c_str(), directory_, name.c_str()) != 0)
    throw system_error("rename a new file to " + quote(name));
  name_.clear();
  sync_directory_fd(directory_);
}

}  // namespace dsec::registry
