#include "runners/isolation/tree_size.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::runners {
namespace {

struct Walk {
  dev_t device;
  std::set<ino_t> linked;  ///< files with several names that were counted
  std::uint64_t bytes = 0;
};

/// Keeps one descriptor per level: a tree may be deeper than that allows only for someone who wants to harm.
constexpr int kDeepest = 512;

void add_directory(int at, const char* name, Walk& walk, int depth) {
  UniqueFd fd(::openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || depth > kDeepest) return;
  DIR* directory = ::fdopendir(fd.get());
  if (directory == nullptr) return;
  const int held = fd.release();  // closedir closes it
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view child = entry->d_name;
    if (child == "." || child == "..") continue;
    struct stat info {};
    if (::fstatat(held, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_dev != walk.device) continue;
    if (!S_ISDIR(info.st_mode) && info.st_nlink > 1 && !walk.linked.insert(info.st_ino).second) continue;
    walk.bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
    if (S_ISDIR(info.st_mode)) add_directory(held, entry->d_name, walk, depth + 1);
  }
  ::closedir(directory);
}

}  // namespace

std::uint64_t tree_bytes(int directory) {
  struct stat root {};
  if (::fstat(directory, &root) != 0) throw system_error("stat the writable layer");
  Walk walk{.device = root.st_dev, .linked = {}};
  add_directory(directory, ".", walk, 0);
  return walk.bytes;
}

}  // namespace dsec::runners
