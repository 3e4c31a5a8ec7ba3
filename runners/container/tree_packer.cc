#include "runners/container/tree_packer.h"

#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <vector>

#include "core/base/error.h"
#include "runners/container/beneath.h"

namespace dsec::runners {
namespace {

/// A descriptor is held for each level of the tree.
constexpr int kDeepest = 400;
/// A file with more pieces is written with its holes filled: each piece costs a record.
constexpr std::size_t kMostPieces = 4096;

std::uint64_t device_of(std::uint32_t major, std::uint32_t minor) { return (std::uint64_t{major} << 32) | minor; }

std::string link_target(int link) {
  std::string target(PATH_MAX, '\0');
  const ssize_t size = ::readlinkat(link, "", target.data(), target.size());
  if (size < 0) throw system_error("read a symlink");
  target.resize(static_cast<std::size_t>(size));
  return target;
}

/// The pieces of a file that hold data; empty when it has no holes, or too many.
std::vector<std::pair<off_t, off_t>> data_pieces(int file, off_t size) {
  std::vector<std::pair<off_t, off_t>> pieces;
  off_t at = 0;
  while (at < size) {
    const off_t begin = ::lseek(file, at, SEEK_DATA);
    if (begin < 0 && errno == ENXIO) break;
    const off_t end = begin < 0 ? -1 : ::lseek(file, begin, SEEK_HOLE);
    if (end < 0 || pieces.size() == kMostPieces) return {};
    if (begin < size) pieces.emplace_back(begin, std::min(end, size) - begin);
    at = end;
  }
  if (pieces.size() == 1 && pieces[0].first == 0 && pieces[0].second == size) return {};
  // The format says where a file ends that ends with a hole by an empty piece.
  if (pieces.empty() || pieces.back().first + pieces.back().second < size) pieces.emplace_back(size, 0);
  return pieces;
}

}  // namespace

void TreePacker::describe(archive_entry* entry, const struct statx& info, const std::string& path) const {
  archive_entry_copy_pathname(entry, path.c_str());
  archive_entry_set_mode(entry, info.stx_mode);
  // An id without a counterpart inside is what the kernel shows there: the overflow id.
  const auto inside = [this](std::uint32_t id) { return ids_.contains_outside(id) ? ids_.to_inside(id) : 65534; };
  archive_entry_set_uid(entry, owner_ ? *owner_ : inside(info.stx_uid));
  archive_entry_set_gid(entry, owner_ ? *owner_ : inside(info.stx_gid));
  archive_entry_set_mtime(entry, info.stx_mtime.tv_sec, info.stx_mtime.tv_nsec);
}

bool TreePacker::add_link(const struct statx& info, archive_entry* entry, const std::string& path) {
  if (info.stx_nlink < 2) return false;
  const auto [first, added] =
      linked_.try_emplace({device_of(info.stx_dev_major, info.stx_dev_minor), info.stx_ino}, path);
  if (added) return false;
  archive_entry_copy_hardlink(entry, first->second.c_str());
  archive_entry_set_size(entry, 0);
  tar_.begin(entry);
  return true;
}

void TreePacker::add_attributes(int file, archive_entry* entry) const {
  for (const auto& [name, value] : read_attributes(file, ids_))
    archive_entry_xattr_add_entry(entry, name.c_str(), value.data(), value.size());
}

void TreePacker::add_regular(int file, const struct statx& info, archive_entry* entry) {
  const auto size = static_cast<off_t>(info.stx_size);
  archive_entry_set_size(entry, size);
  add_attributes(file, entry);
  auto pieces = size > 0 ? data_pieces(file, size) : std::vector<std::pair<off_t, off_t>>{};
  for (const auto& [offset, length] : pieces) archive_entry_sparse_add_entry(entry, offset, length);
  tar_.begin(entry);
  if (pieces.empty()) pieces.emplace_back(0, size);
  // libarchive counts the bytes of holes as written by us, and drops them.
  static constexpr std::array<char, 64 << 10> kZeros{};
  std::array<char, 64 << 10> buffer;
  off_t at = 0;
  const auto fill_to = [&](off_t target) {
    while (at < target) {
      const auto step = static_cast<std::size_t>(std::min<off_t>(target - at, kZeros.size()));
      tar_.data(kZeros.data(), step);
      at += static_cast<off_t>(step);
    }
  };
  for (const auto& [offset, length] : pieces) {
    fill_to(offset);
    const off_t end = offset + length;
    while (at < end) {
      const ssize_t got =
          ::pread(file, buffer.data(), static_cast<std::size_t>(std::min<off_t>(end - at, buffer.size())), at);
      if (got < 0) throw system_error("read " + quote(archive_entry_pathname(entry)));
      if (got == 0) break;  // it has become shorter: zeros stand for the rest, as the header has announced it
      tar_.data(buffer.data(), static_cast<std::size_t>(got));
      at += got;
    }
    if (at < end) break;
  }
}

void TreePacker::add_directory(int directory, archive_entry* entry, const std::string& path, int depth) {
  add_attributes(directory, entry);
  archive_entry_copy_pathname(entry, (path + '/').c_str());
  tar_.begin(entry);
  if (depth >= kDeepest) throw failure(quote(path) + " lies deeper than " + std::to_string(kDeepest) + " directories");
  for (const std::string& name : sorted_names(directory)) add(directory, name, path + '/' + name, depth + 1);
}

void TreePacker::add(int parent, const std::string& name, const std::string& path, int depth) {
  const UniqueFd found(::openat(parent, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found) {
    if (errno == ENOENT && depth > 0) return;  // gone since its name was read
    throw system_error("open " + quote(path));
  }
  struct statx info {};
  if (::statx(found.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &info) != 0)
    throw system_error("stat " + quote(path));
  if (depth == 0) mount_ = info.stx_mnt_id;
  const ArchiveEntry entry = new_entry();
  describe(entry.get(), info, path);
  if (info.stx_mnt_id != mount_) {
    // What is mounted here (/proc, a bound directory) is not the sandbox's; the place is.
    if (!S_ISDIR(info.stx_mode)) return;
    archive_entry_copy_pathname(entry.get(), (path + '/').c_str());
    tar_.begin(entry.get());
    return;
  }
  switch (info.stx_mode & S_IFMT) {
    case S_IFREG: {
      if (add_link(info, entry.get(), path)) return;
      const UniqueFd file = reopen(found.get(), O_RDONLY | O_NONBLOCK);
      if (!file) throw system_error("open " + quote(path));
      return add_regular(file.get(), info, entry.get());
    }
    case S_IFDIR: {
      const UniqueFd directory = reopen(found.get(), O_RDONLY | O_DIRECTORY);
      if (!directory) throw system_error("open " + quote(path));
      return add_directory(directory.get(), entry.get(), path, depth);
    }
    case S_IFLNK:
      archive_entry_copy_symlink(entry.get(), link_target(found.get()).c_str());
      break;
    case S_IFCHR:
    case S_IFBLK:
      archive_entry_set_rdevmajor(entry.get(), info.stx_rdev_major);
      archive_entry_set_rdevminor(entry.get(), info.stx_rdev_minor);
      break;
    case S_IFIFO:
      break;
    default:
      return;  // tar has no sockets
  }
  if (add_link(info, entry.get(), path)) return;
  archive_entry_set_size(entry.get(), 0);
  tar_.begin(entry.get());
}

void TreePacker::add_folder(int directory, const std::string& path, const ExtendedAttributes& more) {
  struct statx info {};
  if (::statx(directory, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &info) != 0)
    throw system_error("stat " + quote(path));
  mount_ = info.stx_mnt_id;
  const ArchiveEntry entry = new_entry();
  describe(entry.get(), info, path + '/');
  add_attributes(directory, entry.get());
  for (const auto& [name, value] : more)
    archive_entry_xattr_add_entry(entry.get(), name.c_str(), value.data(), value.size());
  archive_entry_set_size(entry.get(), 0);
  tar_.begin(entry.get());
}

}  // namespace dsec::runners
