#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "core/base/error.h"
#include "runners/container/beneath.h"
#include "runners/container/files.h"

namespace dsec::runners {
namespace {

using engine::Change;

constexpr int kDeepest = 400;

bool is_opaque(int directory) {
  char value = 0;
  return ::fgetxattr(directory, "trusted.overlay.opaque", &value, 1) == 1 && value == 'y';
}

bool is_whiteout(const struct stat& info) {
  return S_ISCHR(info.st_mode) && major(info.st_rdev) == 0 && minor(info.st_rdev) == 0;
}

class Comparison {
 public:
  std::vector<Change> changes;

  /// Directory `upper` over `lower` (-1: nothing there).
  void compare(int upper, int lower, const std::string& path, int depth) {
    if (depth > kDeepest) throw failure(quote(path) + " lies deeper than " + std::to_string(kDeepest) + " directories");
    // What an opaque directory does not have itself is gone, without a whiteout for each.
    const bool opaque = lower >= 0 && is_opaque(upper);
    std::vector<std::string> names = sorted_names(upper);
    if (opaque) add_hidden(names, lower);
    for (const std::string& name : names) visit(upper, lower, name, path + '/' + name, depth);
  }

 private:
  static void add_hidden(std::vector<std::string>& names, int lower) {
    const std::vector<std::string> below = sorted_names(lower);
    std::vector<std::string> all;
    std::set_union(names.begin(), names.end(), below.begin(), below.end(), std::back_inserter(all));
    names = std::move(all);
  }

  void visit(int upper, int lower, const std::string& name, const std::string& path, int depth) {
    struct stat above {
    }, below{};
    const bool had = lower >= 0 && ::fstatat(lower, name.c_str(), &below, AT_SYMLINK_NOFOLLOW) == 0;
    if (::fstatat(upper, name.c_str(), &above, AT_SYMLINK_NOFOLLOW) != 0 || is_whiteout(above)) {
      if (had) changes.push_back({Change::Kind::Deleted, path});
      return;
    }
    changes.push_back({had ? Change::Kind::Modified : Change::Kind::Added, path});
    if (!S_ISDIR(above.st_mode)) return;
    const UniqueFd directory(::openat(upper, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory && errno == ENOENT) return;
    if (!directory) throw system_error("open " + quote(path));
    const UniqueFd hidden(had && S_ISDIR(below.st_mode)
                              ? ::openat(lower, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                              : -1);
    compare(directory.get(), hidden.get(), path, depth + 1);
  }
};

}  // namespace

std::vector<Change> diff_layer(int upper, int lower) {
  return attempt("cannot compare the writable layer with what lies below", [&] {
    Comparison comparison;
    comparison.compare(upper, lower, "", 0);
    return std::move(comparison.changes);
  });
}

}  // namespace dsec::runners
