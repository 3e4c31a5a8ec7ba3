#include "core/base/directory_names.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec {
namespace {

struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

}  // namespace

std::vector<std::string> directory_names(int directory, const std::string& shown) {
  UniqueFd own(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own) throw system_error("open " + shown);
  const std::unique_ptr<DIR, CloseDirectory> stream(::fdopendir(own.get()));
  if (!stream) throw system_error("read " + shown);
  static_cast<void>(own.release());
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (!entry && errno != 0) throw system_error("read " + shown);
    if (!entry) break;
    if (const std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> directory_names(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return {};
  if (!fd) throw system_error("open " + quote(directory.native()));
  return directory_names(fd.get(), quote(directory.native()));
}

}  // namespace dsec
