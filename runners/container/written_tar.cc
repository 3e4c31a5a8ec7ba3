#include "runners/container/written_tar.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "runners/container/beneath.h"
#include "runners/container/files.h"
#include "runners/container/tree_packer.h"

namespace dsec::runners {
namespace {

constexpr int kDeepest = 400;

bool is_whiteout(const struct stat& info) { return S_ISCHR(info.st_mode) && info.st_rdev == 0; }

bool is_opaque(int directory) {
  char value = 0;
  return ::fgetxattr(directory, kOpaqueAttribute, &value, 1) == 1 && value == 'y';
}

struct Seen {
  bool there = false;
  struct stat info {};
  bool is_directory() const { return there && S_ISDIR(info.st_mode); }
};

Seen look(int directory, const std::string& name) {
  Seen seen;
  if (directory < 0) return seen;
  seen.there = ::fstatat(directory, name.c_str(), &seen.info, AT_SYMLINK_NOFOLLOW) == 0;
  if (!seen.there && errno != ENOENT) throw system_error("stat " + quote(name));
  return seen;
}

UniqueFd open_folder(int parent, const std::string& name) {
  UniqueFd folder(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) throw system_error("open " + quote(name));
  return folder;
}

void check_depth(const std::string& path, int depth) {
  if (depth > kDeepest) throw failure(quote(path) + " lies deeper than " + std::to_string(kDeepest) + " directories");
}

class WrittenPacker {
 public:
  explicit WrittenPacker(int fd) : tar_(kUnmappedIds, fd) {}

  /// Directory `upper` over `lower` (-1: nothing there).
  void upper(int upper, int lower, const std::string& path, int depth) {
    check_depth(path, depth);
    const bool opaque = lower >= 0 && is_opaque(upper);
    tar_.add_folder(upper, path, opaque ? ExtendedAttributes{{kOpaqueAttribute, "y"}} : ExtendedAttributes{});
    // An opaque directory hides all that is below: what lies in it hides nothing more.
    const int below = opaque ? -1 : lower;
    for (const std::string& name : sorted_names(upper)) {
      const Seen above = look(upper, name), had = look(below, name);
      if (!above.there || (is_whiteout(above.info) && !had.there)) continue;
      const std::string each = path + '/' + name;
      if (!above.is_directory()) {
        tar_.add(upper, name, each, depth + 1);
        continue;
      }
      const UniqueFd hidden = had.is_directory() ? open_folder(below, name) : UniqueFd();
      this->upper(open_folder(upper, name).get(), hidden.get(), each, depth + 1);
    }
  }

  /// What `lower` has where `upper` says otherwise.
  void lower(int upper, int lower, const std::string& path, int depth) {
    check_depth(path, depth);
    tar_.add_folder(lower, path);
    std::vector<std::string> names = sorted_names(upper);
    if (is_opaque(upper)) {
      const std::vector<std::string> above = std::move(names), below = sorted_names(lower);
      names.clear();
      std::set_union(above.begin(), above.end(), below.begin(), below.end(), std::back_inserter(names));
    }
    for (const std::string& name : names) {
      const Seen above = look(upper, name), had = look(lower, name);
      if (!had.there) continue;
      const std::string each = path + '/' + name;
      if (above.is_directory() && had.is_directory()) {
        this->lower(open_folder(upper, name).get(), open_folder(lower, name).get(), each, depth + 1);
      } else {
        tar_.add(lower, name, each, depth + 1);
      }
    }
  }

  void finish() { tar_.finish(); }

 private:
  TreePacker tar_;
};

}  // namespace

void write_written(int upper, int lower, Below below, int fd) {
  attempt("cannot pack the writable layer", [&] {
    WrittenPacker packer(fd);
    packer.upper(upper, lower, kWrittenUpper, 0);
    if (below == Below::Included) packer.lower(upper, lower, kWrittenLower, 0);
    packer.finish();
  });
}

}  // namespace dsec::runners
