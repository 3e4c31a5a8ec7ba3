#include "layers/dir/tree_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <tuple>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {
namespace {

constexpr std::size_t kPiece = 1 << 20;

struct DirectoryCloser {
  void operator()(DIR* directory) const noexcept { closedir(directory); }
};

std::string shown(const std::string& path) { return path.empty() ? "the root of the tree" : quote(path); }

Error changed(const std::string& path) {
  return failure(shown(path) + " changed while it was read").hint("again when nothing writes to the tree");
}

Error unreadable(const std::string& attempt, const std::string& path) {
  const int cause = errno;
  Error error = system_error(attempt + " " + shown(path), cause);
  if (cause == EACCES || cause == EPERM) error.hint("as root, or leave it out by a line in .dsecignore");
  return error;
}

std::vector<std::string> sorted_names(const UniqueFd& folder, const std::string& path) {
  UniqueFd copy(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) throw unreadable("open", path);
  const std::unique_ptr<DIR, DirectoryCloser> directory(fdopendir(copy.get()));
  if (!directory) throw unreadable("read", path);
  (void)copy.release();
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* item = readdir(directory.get());
    if (!item) {
      if (errno) throw unreadable("read", path);
      break;
    }
    const std::string_view name = item->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A name that can be given to calls that take no descriptor of the parent folder.
std::string proc_path(const FoundEntry& found) {
  return "/proc/self/fd/" + std::to_string(found.parent) + "/" + found.name;
}

auto identity_of(const struct stat& info) {
  return std::tuple(info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_rdev,
                    S_ISREG(info.st_mode) ? info.st_size : 0, info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                    info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

}  // namespace

TreeReader::TreeReader(const std::filesystem::path& root)
    : root_(root), fd_(open_file(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

void TreeReader::walk(const std::function<bool(const FoundEntry&)>& visit) const {
  FoundEntry top{.parent = fd_.get(), .name = ".", .path = ""};
  if (::fstat(fd_.get(), &top.info) < 0) throw unreadable("stat", "");
  if (visit(top)) walk_folder(fd_, "", visit);
}

void TreeReader::walk_folder(const UniqueFd& folder, const std::string& prefix,
                             const std::function<bool(const FoundEntry&)>& visit) const {
  const std::string here = prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1);
  for (std::string& name : sorted_names(folder, here)) {
    FoundEntry found{.parent = folder.get(), .name = name, .path = prefix + name};
    if (::fstatat(folder.get(), name.c_str(), &found.info, AT_SYMLINK_NOFOLLOW) < 0) {
      if (errno == ENOENT) throw changed(found.path);
      throw unreadable("stat", found.path);
    }
    if (!visit(found) || !S_ISDIR(found.info.st_mode)) continue;
    const UniqueFd inner(::openat(folder.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!inner && (errno == ENOTDIR || errno == ELOOP || errno == ENOENT)) throw changed(found.path);
    if (!inner) throw unreadable("open", found.path);
    struct stat now {};
    if (::fstat(inner.get(), &now) < 0 || now.st_ino != found.info.st_ino || now.st_dev != found.info.st_dev)
      throw changed(found.path);
    walk_folder(inner, found.path + "/", visit);
  }
}

std::map<std::string, std::string> TreeReader::xattrs(const FoundEntry& found) const {
  const std::string place = proc_path(found);
  std::map<std::string, std::string> values;
  // Most files have none, and of those that have some few have many.
  std::string names(1 << 10, '\0');
  ssize_t length = ::llistxattr(place.c_str(), names.data(), names.size());
  if (length < 0 && errno == ERANGE) {
    names.resize(64 << 10);  // XATTR_LIST_MAX
    length = ::llistxattr(place.c_str(), names.data(), names.size());
  }
  if (length < 0) {
    if (errno == ENOTSUP || errno == EOPNOTSUPP) return values;
    throw unreadable("list the extended attributes of", found.path);
  }
  std::string value(length > 0 ? 64 << 10 : 0, '\0');  // XATTR_SIZE_MAX
  for (std::size_t at = 0; at < static_cast<std::size_t>(length);) {
    const std::string name = names.c_str() + at;
    at += name.size() + 1;
    const ssize_t size = ::lgetxattr(place.c_str(), name.c_str(), value.data(), value.size());
    if (size < 0 && errno == ENODATA) throw changed(found.path);
    if (size < 0) throw unreadable("read the extended attribute " + quote(name) + " of", found.path);
    values[name] = value.substr(0, static_cast<std::size_t>(size));
  }
  return values;
}

std::string TreeReader::link_target(const FoundEntry& found) const {
  std::string target(4096, '\0');
  const ssize_t length = ::readlinkat(found.parent, found.name.c_str(), target.data(), target.size());
  if (length < 0 && errno == EINVAL) throw changed(found.path);
  if (length < 0) throw unreadable("read the symlink", found.path);
  target.resize(static_cast<std::size_t>(length));
  return target;
}

void TreeReader::content(const FoundEntry& found, const std::function<void(std::string_view)>& take) const {
  // O_NONBLOCK: what was a file a moment ago may be a FIFO now.
  const UniqueFd fd(
      ::openat(found.parent, found.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == ELOOP || errno == ENXIO)) throw changed(found.path);
  if (!fd) throw unreadable("open", found.path);
  struct stat now {};
  if (::fstat(fd.get(), &now) < 0 || identity_of(now) != identity_of(found.info)) throw changed(found.path);

  static const std::string zeros(kPiece, '\0');
  std::string buffer(std::min<std::uint64_t>(kPiece, static_cast<std::uint64_t>(now.st_size)), '\0');
  off_t at = 0;
  const bool sparse = now.st_blocks * 512 < now.st_size;
  while (at < now.st_size) {
    off_t data = at, hole = now.st_size;
    if (sparse) {
      data = ::lseek(fd.get(), at, SEEK_DATA);
      if (data < 0) data = errno == ENXIO ? now.st_size : at;  // no more data, or a filesystem that cannot tell
      data = std::min(data, now.st_size);
      if (data < now.st_size && (hole = ::lseek(fd.get(), data, SEEK_HOLE)) < 0) hole = now.st_size;
    }
    for (; at < data; at += static_cast<off_t>(std::min<std::uint64_t>(kPiece, static_cast<std::uint64_t>(data - at))))
      take(std::string_view(zeros).substr(0, static_cast<std::size_t>(std::min<off_t>(kPiece, data - at))));
    for (hole = std::min(hole, now.st_size); at < hole;) {
      const ssize_t got =
          ::pread(fd.get(), buffer.data(), static_cast<std::size_t>(std::min<off_t>(kPiece, hole - at)), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw unreadable("read", found.path);
      if (got == 0) throw changed(found.path);
      take({buffer.data(), static_cast<std::size_t>(got)});
      at += got;
    }
  }
  if (::fstat(fd.get(), &now) < 0 || identity_of(now) != identity_of(found.info)) throw changed(found.path);
}

Entry entry_of(const FoundEntry& found) {
  const struct stat& info = found.info;
  Entry entry;
  entry.path = found.path;
  entry.mode = info.st_mode & 07777;
  entry.uid = info.st_uid;
  entry.gid = info.st_gid;
  entry.mtime = {info.st_mtim.tv_sec, static_cast<std::uint32_t>(info.st_mtim.tv_nsec)};
  switch (info.st_mode & S_IFMT) {
    case S_IFDIR:
      entry.type = EntryType::Directory;
      break;
    case S_IFLNK:
      entry.type = EntryType::Symlink;
      break;
    case S_IFIFO:
      entry.type = EntryType::Fifo;
      break;
    case S_IFCHR:
      entry.type = EntryType::CharDevice;
      break;
    case S_IFBLK:
      entry.type = EntryType::BlockDevice;
      break;
    default:
      entry.type = EntryType::File;
      entry.size = static_cast<std::uint64_t>(info.st_size);
  }
  if (entry.type == EntryType::CharDevice || entry.type == EntryType::BlockDevice) {
    entry.major = major(info.st_rdev);
    entry.minor = minor(info.st_rdev);
  }
  return entry;
}

std::map<std::string, std::string> portable_xattrs(std::map<std::string, std::string> xattrs) {
  std::erase_if(xattrs, [](const auto& item) {
    const std::string& name = item.first;
    if (name.starts_with("user.")) return name.starts_with("user.overlay.");  // overlayfs would act on them
    return name != "security.capability" && name != "system.posix_acl_access" && name != "system.posix_acl_default";
  });
  return xattrs;
}

std::string HardLinks::first_path(const FoundEntry& found) {
  if (S_ISDIR(found.info.st_mode) || found.info.st_nlink < 2) return {};
  const auto [place, first] = seen_.try_emplace({found.info.st_dev, found.info.st_ino}, found.path);
  return first ? std::string() : place->second;
}

std::uint64_t WalkMemory::mark(const FoundEntry& found) {
  std::uint64_t hash = std::hash<std::string>()(found.path);
  const auto mix = [&](auto value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
  };
  std::apply([&](auto... part) { (mix(part), ...); }, identity_of(found.info));
  return hash;
}

void WalkMemory::expect(const FoundEntry& found) {
  if (next_ == marks_.size() || marks_[next_++] != mark(found)) throw changed(found.path);
}

void WalkMemory::expect_end() const {
  if (next_ != marks_.size())
    throw failure("files vanished from the tree while it was read").hint("again when nothing writes to the tree");
}

void LimitCheck::count(const Entry& entry) {
  if (++entries_ > limits_.entries)
    throw refusal(Refusal::EntryLimit, "the tree has more than " + std::to_string(limits_.entries) + " entries (at " +
                                           shown(entry.path) + ")");
  if (entry.path.size() > limits_.path_bytes)
    throw refusal(Refusal::PathLimit, "the path " + quote(entry.path.substr(0, 80)) + "… is longer than " +
                                          std::to_string(limits_.path_bytes) + " bytes");
  bytes_ += entry.size;
  if (bytes_ > limits_.unpacked_bytes)
    throw refusal(Refusal::SizeLimit, "the tree comes to more than " + std::to_string(limits_.unpacked_bytes) +
                                          " bytes (at " + shown(entry.path) + ")");
}

}  // namespace dsec::layers
