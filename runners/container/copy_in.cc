#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "core/base/error.h"
#include "runners/container/beneath.h"
#include "runners/container/extended_attributes.h"
#include "runners/container/files.h"
#include "runners/container/sandbox_thread.h"
#include "runners/container/tar_stream.h"
#include "runners/container/written_tar.h"

namespace dsec::runners {
namespace {

/// Where an entry goes: a directory of the sandbox and a name in it.
struct Place {
  UniqueFd parent;
  std::string name;  ///< "." for the target directory itself
};

struct DirectoryTimes {
  std::vector<std::string> parts;
  mode_t mode;
  timespec modified;
};

/// Of a stream that is the writable layer of a guest: it has deletions and opaque directories, and an end.
struct WrittenLayer {
  std::uint64_t left = 0;  ///< bytes that may still come of it
};

class Unpacker {
 public:
  Unpacker(const SandboxFiles& files, std::string target, const UnpackOptions& options, WrittenLayer* written = nullptr)
      : root_(files.root), ids_(files.ids), options_(options), target_(std::move(target)), written_(written) {
    base_ = path_components(target_);
    const UniqueFd directory = open_in_root(root_, target_, O_PATH | O_DIRECTORY);
    if (!directory) throw system_error("open the directory " + quote(target_));
  }

  void unpack(TarReader& tar) {
    while (archive_entry* entry = tar.next()) {
      const char* name = archive_entry_pathname(entry);
      const std::string path = name != nullptr ? name : "";
      attempt("cannot unpack the entry " + quote(path), [&] { add(tar, entry, path); });
    }
    // Writing into a directory changes its time, and a read-only one could not be written into.
    for (auto each = directories_.rbegin(); each != directories_.rend(); ++each) finish_directory(*each);
  }

 private:
  void add(TarReader& tar, archive_entry* entry, const std::string& path);
  std::vector<std::string> checked(const std::string& path) const;
  UniqueFd open_directory(const std::vector<std::string>& parts, std::size_t count, bool make);
  Place place(const std::vector<std::string>& parts);
  void make_directory(const Place& place, archive_entry* entry, const std::vector<std::string>& parts);
  void make_regular(TarReader& tar, const Place& place, archive_entry* entry);
  void make_symlink(const Place& place, archive_entry* entry, const std::vector<std::string>& parts);
  void make_node(const Place& place, archive_entry* entry, mode_t type);
  void make_link(const Place& place, const std::string& target);
  void replace(const Place& place);
  void spend(std::uint64_t bytes) const;
  void set_time(const Place& place, archive_entry* entry) const;
  void set_owner(int file, archive_entry* entry) const;
  void finish_directory(const DirectoryTimes& directory);
  ExtendedAttributes attributes_of(archive_entry* entry) const;
  mode_t mode_of(archive_entry* entry) const {
    return static_cast<mode_t>(archive_entry_perm(entry)) & (options_.owner ? 01777 : 07777);
  }

  const int root_;
  const IdMap ids_;
  const UnpackOptions& options_;
  const std::string target_;
  WrittenLayer* const written_;  ///< null: it is another stream
  std::vector<std::string> base_;
  std::set<std::vector<std::string>> symlinks_;  ///< made by this stream
  std::vector<DirectoryTimes> directories_;
};

std::vector<std::string> Unpacker::checked(const std::string& path) const {
  if (path.empty()) throw usage_error("it has no name");
  if (path.front() == '/') throw usage_error("its name is absolute");
  std::vector<std::string> parts = path_components(path);
  if (!options_.name.empty()) {
    // A stream of a directory's content has "." at its top.
    const bool has_top = !parts.empty() && path.rfind("./", 0) != 0;
    if (has_top) parts.erase(parts.begin());
    parts.insert(parts.begin(), options_.name);
  }
  std::vector<std::string> prefix;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "..") throw usage_error("its name leads out of the directory");
    prefix.push_back(parts[i]);
    if (i + 1 < parts.size() && symlinks_.contains(prefix))
      throw usage_error("it would be written through the symlink " + quote(parts[i]) + " of the same stream");
  }
  return parts;
}

/// The first `count` parts below the target, resolved anew from the sandbox's root: its own symlinks count, whoever
/// changes them meanwhile.
UniqueFd Unpacker::open_directory(const std::vector<std::string>& parts, std::size_t count, bool make) {
  std::string path = "/";
  for (const std::string& part : base_) path += part + '/';
  UniqueFd above;
  for (std::size_t i = 0;; ++i) {
    UniqueFd here = open_in_root(root_, path, O_PATH | O_DIRECTORY);
    if (!here && errno == ENOENT && make && above) {
      if (::mkdirat(above.get(), parts[i - 1].c_str(), 0755) != 0 && errno != EEXIST)
        throw system_error("make the directory " + quote(path));
      here = open_in_root(root_, path, O_PATH | O_DIRECTORY);
    }
    if (!here) throw system_error("open the directory " + quote(path));
    if (i == count) return here;
    above = std::move(here);
    path += parts[i] + '/';
  }
}

Place Unpacker::place(const std::vector<std::string>& parts) {
  if (parts.empty()) return {open_directory(parts, 0, false), "."};
  return {open_directory(parts, parts.size() - 1, true), parts.back()};
}

void Unpacker::replace(const Place& place) {
  if (place.name == ".") throw usage_error("it is the directory itself, and no directory");
  if (::unlinkat(place.parent.get(), place.name.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno == EISDIR || errno == EPERM)
    throw failure("a directory is in its place").hint("remove the directory first");
  throw system_error("replace what is in its place");
}

void Unpacker::spend(std::uint64_t bytes) const {
  if (!written_) return;
  if (written_->left < bytes) throw failure("the guest sends more than its disk has room for");
  written_->left -= bytes;
}

void Unpacker::set_owner(int file, archive_entry* entry) const {
  const la_int64_t uid = options_.owner ? *options_.owner : archive_entry_uid(entry);
  const la_int64_t gid = options_.owner ? *options_.owner : archive_entry_gid(entry);
  if (uid < 0 || gid < 0 || uid >= ids_.count || gid >= ids_.count)
    throw failure("the sandbox has no user " + std::to_string(uid) + " or group " + std::to_string(gid))
        .hint("a sandbox with a user namespace has the ids below " + std::to_string(ids_.count));
  if (::fchownat(file, "", ids_.to_outside(static_cast<std::uint32_t>(uid)),
                 ids_.to_outside(static_cast<std::uint32_t>(gid)), AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0)
    throw system_error("set its owner");
}

ExtendedAttributes Unpacker::attributes_of(archive_entry* entry) const {
  ExtendedAttributes result;
  const char* name = nullptr;
  const void* value = nullptr;
  std::size_t size = 0;
  archive_entry_xattr_reset(entry);
  while (archive_entry_xattr_next(entry, &name, &value, &size) == 0)
    if (name != nullptr && !(options_.owner && std::string_view(name) == "security.capability"))
      result.emplace_back(name, std::string(static_cast<const char*>(value), size));
  return result;
}

timespec modified(archive_entry* entry) { return {archive_entry_mtime(entry), archive_entry_mtime_nsec(entry)}; }

void Unpacker::make_directory(const Place& place, archive_entry* entry, const std::vector<std::string>& parts) {
  if (::mkdirat(place.parent.get(), place.name.c_str(), 0700) != 0) {
    if (errno != EEXIST) throw system_error("make it");
    struct stat info {};
    // A symlink to a directory is one that the sandbox wants there.
    const bool kept = ::fstatat(place.parent.get(), place.name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                      (S_ISDIR(info.st_mode) || S_ISLNK(info.st_mode));
    if (!kept) {
      replace(place);
      if (::mkdirat(place.parent.get(), place.name.c_str(), 0700) != 0) throw system_error("make it");
    }
  }
  const UniqueFd directory = open_directory(parts, parts.size(), false);
  const UniqueFd readable = reopen(directory.get(), O_RDONLY | O_DIRECTORY);
  if (!readable) throw system_error("open it");
  set_owner(readable.get(), entry);
  const ExtendedAttributes attributes = attributes_of(entry);
  write_attributes(readable.get(), attributes, ids_);
  const auto opaque = [](const auto& each) { return each.first == kOpaqueAttribute && each.second == "y"; };
  if (written_ && std::any_of(attributes.begin(), attributes.end(), opaque) &&
      ::fsetxattr(readable.get(), kOpaqueAttribute, "y", 1, 0) != 0)
    throw system_error("make it opaque");
  directories_.push_back({parts, mode_of(entry), modified(entry)});
}

void Unpacker::finish_directory(const DirectoryTimes& each) {
  const UniqueFd directory = open_directory(each.parts, each.parts.size(), false);
  const UniqueFd readable = reopen(directory.get(), O_RDONLY | O_DIRECTORY);
  const timespec times[2] = {{0, UTIME_NOW}, each.modified};
  if (!readable || ::fchmod(readable.get(), each.mode) != 0 || ::futimens(readable.get(), times) != 0)
    throw system_error("set mode and time of the directory " + quote(each.parts.empty() ? target_ : each.parts.back()));
}

void Unpacker::make_regular(TarReader& tar, const Place& place, archive_entry* entry) {
  replace(place);
  const UniqueFd file(
      ::openat(place.parent.get(), place.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) throw system_error("make it");
  tar.data([&](const char* bytes, std::size_t size, std::int64_t offset) {
    spend(size);
    while (size > 0) {
      const ssize_t put = ::pwrite(file.get(), bytes, size, offset);
      if (put < 0) throw system_error("write it");
      bytes += put;
      offset += put;
      size -= static_cast<std::size_t>(put);
    }
  });
  if (::ftruncate(file.get(), archive_entry_size(entry)) != 0) throw system_error("set its size");
  // Owner first: a change of owner takes setuid bits and capabilities away.
  set_owner(file.get(), entry);
  if (::fchmod(file.get(), mode_of(entry)) != 0) throw system_error("set its mode");
  write_attributes(file.get(), attributes_of(entry), ids_);
  const timespec times[2] = {{0, UTIME_NOW}, modified(entry)};
  if (::futimens(file.get(), times) != 0) throw system_error("set its time");
}

// Of what cannot be opened. A layer has the time of everything, as what was written shows it.
void Unpacker::set_time(const Place& place, archive_entry* entry) const {
  const timespec times[2] = {{0, UTIME_NOW}, modified(entry)};
  if (written_ && ::utimensat(place.parent.get(), place.name.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
    throw system_error("set its time");
}

void Unpacker::make_symlink(const Place& place, archive_entry* entry, const std::vector<std::string>& parts) {
  const char* target = archive_entry_symlink(entry);
  if (target == nullptr || *target == '\0') throw usage_error("it is a symlink without target");
  replace(place);
  if (::symlinkat(target, place.parent.get(), place.name.c_str()) != 0) throw system_error("make it");
  symlinks_.insert(parts);
  const UniqueFd link(::openat(place.parent.get(), place.name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!link) throw system_error("open it");
  set_owner(link.get(), entry);
  set_time(place, entry);
}

void Unpacker::make_node(const Place& place, archive_entry* entry, mode_t type) {
  replace(place);
  if (::mknodat(place.parent.get(), place.name.c_str(), type | mode_of(entry), 0) != 0) throw system_error("make it");
  const UniqueFd node(::openat(place.parent.get(), place.name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!node) throw system_error("open it");
  set_owner(node.get(), entry);
  set_time(place, entry);
}

void Unpacker::make_link(const Place& to, const std::string& target) {
  const std::vector<std::string> parts = checked(target);
  if (parts.empty()) throw usage_error("it is a link to the directory itself");
  const UniqueFd parent = open_directory(parts, parts.size() - 1, false);
  // Not what a symlink of that name points to, and not a file that has been put there since.
  struct stat source {
  }, present{};
  if (::fstatat(parent.get(), parts.back().c_str(), &source, AT_SYMLINK_NOFOLLOW) != 0)
    throw system_error("find " + quote(target) + ", which it links to");
  if (::fstatat(to.parent.get(), to.name.c_str(), &present, AT_SYMLINK_NOFOLLOW) == 0 &&
      present.st_dev == source.st_dev && present.st_ino == source.st_ino)
    return;
  replace(to);
  if (::linkat(parent.get(), parts.back().c_str(), to.parent.get(), to.name.c_str(), 0) != 0)
    throw system_error("link it to " + quote(target));
}

void Unpacker::add(TarReader& tar, archive_entry* entry, const std::string& path) {
  constexpr std::uint64_t kHeader = 512;
  spend(kHeader);
  const std::vector<std::string> parts = checked(path);
  const Place where = place(parts);
  // A symlink of this stream gives way to whatever comes under its name later, also to a directory.
  if (symlinks_.erase(parts) != 0) replace(where);
  if (const char* link = archive_entry_hardlink(entry)) return make_link(where, link);
  switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
      return make_regular(tar, where, entry);
    case AE_IFDIR:
      return make_directory(where, entry, parts);
    case AE_IFLNK:
      return make_symlink(where, entry, parts);
    case AE_IFIFO:
      return make_node(where, entry, S_IFIFO);
    case AE_IFCHR:
      // What overlayfs marks a deletion with.
      if (written_ && archive_entry_rdevmajor(entry) == 0 && archive_entry_rdevminor(entry) == 0)
        return make_node(where, entry, S_IFCHR);
      [[fallthrough]];
    default:
      throw usage_error("it is a device, and a sandbox has none but its own");
  }
}

}  // namespace

void copy_in(const SandboxFiles& files, const std::string& path, int fd, const UnpackOptions& options) {
  attempt("cannot unpack into " + quote(path), [&] {
    as_sandbox_root(files.ids, [&] {
      TarReader tar(fd);
      Unpacker(files, path, options).unpack(tar);
    });
  });
}

void unpack_written(int into, int fd, std::uint64_t most) {
  attempt("cannot take in what the guest has written", [&] {
    WrittenLayer written{most};
    TarReader tar(fd);
    const UnpackOptions options;
    Unpacker({into, kUnmappedIds}, "/", options, &written).unpack(tar);
  });
}

}  // namespace dsec::runners
