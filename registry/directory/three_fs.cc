#include "registry/directory/three_fs.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdint>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMountType = "fuse.hf3fs";
// Of the 3FS client's ioctl interface: _IOR('h', 2, u32) gives a magic number on any of its files and directories.
constexpr unsigned long kMagicRequest = 0x80046802;
constexpr std::uint32_t kMagic = 0x8F3F5FFF;

// The kernel writes space, tab, newline and backslash as \ and three octal digits.
std::string unescape(std::string_view text) {
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) && octal(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> found;
  while (!line.empty()) {
    const std::size_t space = line.find(' ');
    if (space != 0) found.push_back(line.substr(0, space));
    if (space == std::string_view::npos) break;
    line.remove_prefix(space + 1);
  }
  return found;
}

// What exists of a path that may be about to be made, free of symlinks.
fs::path existing_part(fs::path path) {
  std::error_code missing;
  for (;;) {
    const fs::path real = fs::canonical(path, missing);
    if (!missing) return real;
    if (!path.has_relative_path()) return path;
    path = path.parent_path();
  }
}

}  // namespace

std::vector<MountPoint> parse_mountinfo(std::string_view text) {
  std::vector<MountPoint> mounts;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::vector<std::string_view> fields = words(text.substr(0, end));
    // id parent device root MOUNT-POINT options [optional…] - TYPE source super-options
    for (std::size_t dash = 6; dash + 1 < fields.size(); ++dash)
      if (fields[dash] == "-") {
        mounts.push_back({unescape(fields[4]), unescape(fields[dash + 1])});
        break;
      }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return mounts;
}

const MountPoint* mount_of(const fs::path& path, const std::vector<MountPoint>& mounts) {
  const MountPoint* best = nullptr;
  for (const MountPoint& mount : mounts) {
    const std::string& point = mount.path.native();
    const bool contains =
        point == "/" || path == mount.path || (path.native().starts_with(point) && path.native()[point.size()] == '/');
    if (contains && (!best || point.size() >= best->path.native().size())) best = &mount;
  }
  return best;
}

bool is_three_fs(const fs::path& directory) {
  const fs::path real = existing_part(directory);
  const std::vector<MountPoint> mounts = parse_mountinfo(read_file("/proc/self/mountinfo"));
  const MountPoint* const mount = mount_of(real, mounts);
  if (!mount || mount->type != kMountType) return false;
  const UniqueFd fd(::open(real.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::uint32_t magic = 0;
  return fd && ::ioctl(fd.get(), kMagicRequest, &magic) == 0 && magic == kMagic;
}

void require_three_fs(const fs::path& directory) {
  if (is_three_fs(directory)) return;
  const fs::path real = existing_part(directory);
  const std::vector<MountPoint> mounts = parse_mountinfo(read_file("/proc/self/mountinfo"));
  const MountPoint* const mount = mount_of(real, mounts);
  throw usage_error(quote(directory.native()) + " does not lie on 3FS" +
                    (mount ? ", but on " + mount->type + " mounted at " + quote(mount->path.native()) : ""))
      .hint("mount 3FS there; or use a file: URL")
      .hint("publish, pull or registry add with --allow-any-fs, to follow the rules of 3FS on another filesystem");
}

}  // namespace dsec::registry
