#include "registry/gc/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <set>

#include "core/base/files.h"
#include "core/base/unique_fd.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

void find_in(const fs::path& directory, int depth, std::vector<fs::path>& found) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(directory, gone)) {
    std::error_code ignored;
    if (temp_file_is_stale(entry.path().filename().native()))
      found.push_back(entry.path());
    else if (depth > 0 && entry.symlink_status(ignored).type() == fs::file_type::directory)
      find_in(entry.path(), depth - 1, found);
  }
}

struct Counter {
  dev_t device;
  std::set<ino_t> links;
  std::uint64_t bytes = 0;

  void add(const struct stat& status) {
    if (status.st_nlink > 1 && !S_ISDIR(status.st_mode) && !links.insert(status.st_ino).second) return;
    bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }

  void descend(UniqueFd directory) {
    DIR* const stream = ::fdopendir(directory.get());
    if (!stream) return;
    static_cast<void>(directory.release());
    while (const dirent* entry = ::readdir(stream)) {
      const std::string_view name = entry->d_name;
      struct stat status;
      if (name == "." || name == ".." || ::fstatat(::dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
          status.st_dev != device)
        continue;
      add(status);
      if (!S_ISDIR(status.st_mode)) continue;
      UniqueFd below(::openat(::dirfd(stream), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (below) descend(std::move(below));
    }
    ::closedir(stream);
  }
};

}  // namespace

std::vector<fs::path> find_leftovers(const engine::Home& home) {
  std::vector<fs::path> found;
  find_in(home.root(), 0, found);
  find_in(home.store(), 3, found);
  find_in(home.cache(), 3, found);
  find_in(home.run(), 0, found);
  find_in(home.run() / "births", 1, found);
  find_in(home.sandboxes(), 0, found);
  find_in(home.root() / "trajectories", 1, found);
  find_in(home.root() / "vm", 1, found);
  std::error_code gone;
  for (const auto& sandbox : fs::directory_iterator(home.sandboxes(), gone))
    if (!sandbox.path().filename().native().starts_with(".tmp-")) find_in(sandbox.path(), 0, found);
  return found;
}

std::uint64_t allocated_bytes(const fs::path& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return 0;
  Counter counter{status.st_dev, {}};
  counter.add(status);
  if (S_ISDIR(status.st_mode)) {
    UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (directory) counter.descend(std::move(directory));
  }
  return counter.bytes;
}

}  // namespace dsec::registry
