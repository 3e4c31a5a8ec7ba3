#include "runners/container/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/directory_names.h"
#include "core/base/error.h"

namespace dsec::runners {

UniqueFd open_in_root(int root, const std::string& path, int flags) noexcept {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  for (int tries = 0; tries < 1000; ++tries) {
    const long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0) return UniqueFd(static_cast<int>(fd));
    if (errno != EAGAIN) break;
  }
  return {};
}

std::vector<std::string> path_components(std::string_view path) {
  std::vector<std::string> result;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    if (!part.empty() && part != ".") result.emplace_back(part);
  }
  return result;
}

UniqueFd reopen(int path_descriptor, int flags) noexcept {
  const std::string link = "/proc/self/fd/" + std::to_string(path_descriptor);
  return UniqueFd(::open(link.c_str(), flags | O_CLOEXEC));
}

std::vector<std::string> sorted_names(int directory) { return directory_names(directory, "a directory"); }

}  // namespace dsec::runners
