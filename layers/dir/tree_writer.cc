#include "layers/dir/tree_writer.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::layers {
namespace {

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

void require(int result, const char* what, const std::string& path) {
  if (result != 0) throw system_error(std::string(what) + " " + quote(path));
}

}  // namespace

TreeWriter::TreeWriter(const std::filesystem::path& folder) : root_(open_file(folder, O_RDONLY | O_DIRECTORY)) {}

UniqueFd TreeWriter::parent_of(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, root_.get(), parent.c_str(), &how, sizeof how)));
  if (fd || errno != ENOENT || slash == std::string::npos) {
    if (!fd) throw system_error("open " + quote(parent));
    return fd;
  }
  // A folder that exists only because something lies in it.
  const UniqueFd above = parent_of(parent);
  require(::mkdirat(above.get(), name_of(parent).c_str(), 0755), "make", parent);
  return parent_of(path);
}

void TreeWriter::entry(const Entry& entry) {
  end_file();
  if (entry.path.empty()) {
    folders_.push_back(entry);
    return;
  }
  const UniqueFd parent = parent_of(entry.path);
  make(entry, parent.get(), name_of(entry.path));
}

void TreeWriter::make(const Entry& entry, int parent, const std::string& name) {
  switch (entry.type) {
    case EntryType::Directory:
      require(::mkdirat(parent, name.c_str(), 0700), "make", entry.path);
      folders_.push_back(entry);
      return;
    case EntryType::File:
      file_.reset(::openat(parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!file_) throw system_error("make " + quote(entry.path));
      file_entry_ = entry;
      return;
    case EntryType::HardLink: {
      const UniqueFd target = parent_of(entry.target);
      require(::linkat(target.get(), name_of(entry.target).c_str(), parent, name.c_str(), 0), "link", entry.path);
      return;
    }
    case EntryType::Symlink:
      require(::symlinkat(entry.target.c_str(), parent, name.c_str()), "make", entry.path);
      break;
    case EntryType::Fifo:
      require(::mkfifoat(parent, name.c_str(), 0600), "make", entry.path);
      break;
    case EntryType::CharDevice:
    case EntryType::BlockDevice:
      // Nothing can be opened through it: what is mounted for a command has no devices.
      return;
  }
  set_attributes(entry, parent, name);
}

void TreeWriter::data(std::string_view bytes) { write_all(file_.get(), bytes); }

void TreeWriter::end_file() {
  if (!file_) return;
  file_.reset();
  const UniqueFd parent = parent_of(file_entry_.path);
  set_attributes(file_entry_, parent.get(), name_of(file_entry_.path));
}

void TreeWriter::set_attributes(const Entry& entry, int parent, const std::string& name) {
  require(::fchownat(parent, name.c_str(), entry.uid, entry.gid, AT_SYMLINK_NOFOLLOW), "change the owner of",
          entry.path);
  if (entry.type != EntryType::Symlink) {
    const UniqueFd file(::openat(parent, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!file) throw system_error("open " + quote(entry.path));
    const std::string path = "/proc/self/fd/" + std::to_string(file.get());
    require(::chmod(path.c_str(), entry.mode), "set the mode of", entry.path);
    for (const auto& [key, value] : entry.xattrs)
      require(::setxattr(path.c_str(), key.c_str(), value.data(), value.size(), 0), "set an attribute of", entry.path);
  }
  const timespec time{static_cast<time_t>(entry.mtime.seconds), static_cast<long>(entry.mtime.nanoseconds)};
  const timespec times[] = {time, time};
  require(::utimensat(parent, name.c_str(), times, AT_SYMLINK_NOFOLLOW), "set the time of", entry.path);
}

void TreeWriter::finish() {
  end_file();
  // Deepest first.
  for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder) {
    if (folder->path.empty()) {
      set_attributes(*folder, root_.get(), ".");
      continue;
    }
    const UniqueFd parent = parent_of(folder->path);
    set_attributes(*folder, parent.get(), name_of(folder->path));
  }
  folders_.clear();
}

}  // namespace dsec::layers
