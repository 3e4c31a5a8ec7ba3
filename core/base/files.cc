#include "core/base/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>

#include "core/base/child_process.h"
#include "core/base/directory_names.h"
#include "core/base/error.h"

namespace dsec {
namespace fs = std::filesystem;

UniqueFd open_file(const fs::path& path, int flags, mode_t mode) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) throw system_error("open " + quote(path.native()));
  return fd;
}

std::string read_all(int fd, std::uint64_t limit) {
  std::string content;
  char buffer[64 << 10];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read");
    if (got == 0) return content;
    content.append(buffer, static_cast<std::size_t>(got));
    if (content.size() > limit) throw failure("more than " + std::to_string(limit) + " bytes");
  }
}

std::string read_file(const fs::path& path, std::uint64_t limit) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  return attempt("cannot read " + quote(path.native()), [&] { return read_all(fd.get(), limit); });
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw system_error("write");
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

void sync_directory(const fs::path& directory) {
  const UniqueFd fd = open_file(directory, O_RDONLY | O_DIRECTORY);
  // Some network filesystems do not implement it and do not need it (3FS: metadata is durable when the call returns).
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOSYS)
    throw system_error("fsync " + quote(directory.native()));
}

void make_directories(const fs::path& path, mode_t mode) {
  if (path.empty() || ::mkdir(path.c_str(), mode) == 0) return;
  if (errno == ENOENT) {
    make_directories(path.parent_path(), mode);
    if (::mkdir(path.c_str(), mode) == 0) return;
  }
  const int error = errno;
  struct stat status;
  if (error == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  throw system_error("mkdir " + quote(path.native()), error);
}

void write_file_atomic(const fs::path& path, std::string_view content, mode_t mode) {
  attempt("cannot write " + quote(path.native()), [&] {
    TempFile file(path.has_parent_path() ? path.parent_path() : fs::path("."), mode);
    write_all(file.fd(), content);
    if (::fchmod(file.fd(), mode) != 0) throw system_error("chmod");
    file.publish(path);
  });
}

namespace {

void remove_below(int parent, const std::string& name, dev_t device, const std::string& shown) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR && errno != EPERM) throw system_error("unlink " + quote(shown));
  UniqueFd self(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!self) throw system_error("open " + quote(shown));
  struct stat status;
  if (::fstat(self.get(), &status) != 0) throw system_error("stat " + quote(shown));
  if (status.st_dev != device) throw failure(quote(shown) + " is a mount point, so it is left alone");
  for (const auto& child : directory_names(self.get(), quote(shown)))
    remove_below(self.get(), child, device, shown + "/" + child);
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    throw system_error("rmdir " + quote(shown));
}

}  // namespace

void remove_tree(const fs::path& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    throw system_error("stat " + quote(path.native()));
  }
  struct stat parent_status;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const UniqueFd parent_fd = open_file(parent, O_RDONLY | O_DIRECTORY);
  if (::fstat(parent_fd.get(), &parent_status) != 0) throw system_error("stat " + quote(parent.native()));
  remove_below(parent_fd.get(), path.filename().native(), parent_status.st_dev, path.native());
}

namespace {

// Names tell who made them, so that garbage collection removes what a killed process left and nothing else.
std::string temp_name_template() {
  static const std::pair<pid_t, std::uint64_t> kSelf = {::getpid(), process_start_ticks(::getpid())};
  const pid_t pid = ::getpid();  // a forked child has inherited the static
  const std::uint64_t ticks = pid == kSelf.first ? kSelf.second : process_start_ticks(pid);
  return ".tmp-" + std::to_string(pid) + "-" + std::to_string(ticks) + "-XXXXXX";
}

}  // namespace

bool temp_file_is_stale(std::string_view name) {
  constexpr std::string_view kPrefix = ".tmp-";
  if (!name.starts_with(kPrefix)) return false;
  pid_t pid = 0;
  std::uint64_t ticks = 0;
  const char* const end = name.data() + name.size();
  auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, pid);
  if (error != std::errc() || pid <= 0 || at == end || *at != '-') return false;
  const auto rest = std::from_chars(at + 1, end, ticks);
  if (rest.ec != std::errc() || rest.ptr == end || *rest.ptr != '-') return false;
  return process_start_ticks(pid) != ticks;
}

TempFile::TempFile(fs::path directory, mode_t mode) {
  std::string name = (directory / temp_name_template()).native();
  fd_.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd_) throw system_error("make a temporary file in " + quote(directory.native()));
  path_ = name;
  if (mode != 0600 && ::fchmod(fd_.get(), mode) != 0) {
    const int error = errno;
    ::unlink(path_.c_str());
    throw system_error("chmod " + quote(name), error);
  }
}

TempFile::TempFile(TempFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::move(other.fd_)) {
  other.path_.clear();
}

TempFile::~TempFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void TempFile::publish(const fs::path& target) {
  if (::fsync(fd_.get()) != 0) throw system_error("fsync " + quote(path_.native()));
  if (::rename(path_.c_str(), target.c_str()) != 0)
    throw system_error("rename " + quote(path_.native()) + " to " + quote(target.native()));
  path_.clear();
  sync_directory(target.has_parent_path() ? target.parent_path() : fs::path("."));
}

TempDirectory::TempDirectory(const fs::path& parent) {
  std::string name = (parent / temp_name_template()).native();
  if (!::mkdtemp(name.data())) throw system_error("make a temporary directory in " + quote(parent.native()));
  path_ = name;
}

TempDirectory::~TempDirectory() {
  if (path_.empty()) return;
  try {
    remove_tree(path_);
  } catch (const Error&) {
    // Left for gc, which knows the name.
  }
}

namespace {

bool lock_fd(int fd, FileLock::Mode mode, int command) {
  struct flock lock {};
  lock.l_type = mode == FileLock::Mode::Exclusive ? F_WRLCK : F_RDLCK;
  lock.l_whence = SEEK_SET;
  while (::fcntl(fd, command, &lock) != 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EACCES) return false;
    throw system_error("lock");
  }
  return true;
}

}  // namespace

FileLock::FileLock(const fs::path& path, Mode mode) : fd_(open_file(path, O_RDWR | O_CREAT, 0600)) {
  attempt("cannot lock " + quote(path.native()), [&] { lock_fd(fd_.get(), mode, F_OFD_SETLKW); });
}

FileLock FileLock::try_lock(const fs::path& path, Mode mode) {
  FileLock lock;
  UniqueFd fd = open_file(path, O_RDWR | O_CREAT, 0600);
  if (lock_fd(fd.get(), mode, F_OFD_SETLK)) lock.fd_ = std::move(fd);
  return lock;
}

}  // namespace dsec
