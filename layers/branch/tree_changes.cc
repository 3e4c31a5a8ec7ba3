#include "layers/branch/tree_changes.h"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <vector>

#include "core/base/directory_names.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::layers {
namespace {

constexpr int kDeepest = 1024;

std::vector<std::string> sorted_names(int folder, const std::string& path) {
  return directory_names(folder, quote("/" + path));
}

std::optional<FileState> look(int directory, const std::string& name) {
  if (directory < 0) return std::nullopt;
  FileState state{directory, name, {}};
  if (::fstatat(directory, name.c_str(), &state.info, AT_SYMLINK_NOFOLLOW) == 0) return state;
  if (errno == ENOENT) return std::nullopt;
  throw system_error("stat " + quote(name));
}

bool is_directory(const std::optional<FileState>& state) { return state && S_ISDIR(state->info.st_mode); }

bool is_whiteout(const FileState& state) { return S_ISCHR(state.info.st_mode) && state.info.st_rdev == 0; }

bool is_opaque(int directory) {
  char value = 0;
  return ::fgetxattr(directory, "trusted.overlay.opaque", &value, 1) == 1 && value == 'y';
}

UniqueFd open_directory(const std::optional<FileState>& state, const std::string& path) {
  if (!is_directory(state)) return UniqueFd();
  UniqueFd fd(::openat(state->directory, state->name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) throw system_error("open " + quote("/" + path));
  return fd;
}

class Comparison {
 public:
  explicit Comparison(const std::function<void(const ChangedFile&)>& visit) : visit_(visit) {}

  /// `upper` over `lower`, of which one may be missing (-1). Without an upper everything of the lower is gone.
  void folder(int upper, int lower, const std::string& prefix, int depth) {
    if (depth > kDeepest) throw failure(quote("/" + prefix) + " lies too deep");
    std::vector<std::string> names;
    if (upper >= 0) names = sorted_names(upper, prefix);
    if (lower >= 0 && (upper < 0 || is_opaque(upper))) {
      const std::vector<std::string> below = sorted_names(lower, prefix), above = std::move(names);
      names.clear();
      std::set_union(above.begin(), above.end(), below.begin(), below.end(), std::back_inserter(names));
    }
    for (const std::string& name : names) entry(upper, lower, name, prefix + name, depth);
  }

 private:
  void entry(int upper, int lower, const std::string& name, const std::string& path, int depth) {
    const std::optional<FileState> before = look(lower, name);
    std::optional<FileState> after = look(upper, name);
    if (after && is_whiteout(*after)) after.reset();
    // What was a file goes before what now lies at its place, and what was a directory, too.
    const bool was_file = before && !is_directory(before), is_file = after && !is_directory(after);
    const UniqueFd above = open_directory(after, path), below = open_directory(before, path);
    if (was_file && !is_file) visit_({path, before, std::nullopt});
    if (is_file && below) folder(-1, below.get(), path + "/", depth + 1);
    if (is_file) visit_({path, was_file ? before : std::nullopt, after});
    if (!is_file && (above || below)) folder(above ? above.get() : -1, below ? below.get() : -1, path + "/", depth + 1);
  }

  const std::function<void(const ChangedFile&)>& visit_;
};

UniqueFd open_content(const FileState& file) {
  UniqueFd fd(::openat(file.directory, file.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw system_error("open " + quote(file.name));
  return fd;
}

/// As much as there is, up to a whole buffer.
std::string_view read_piece(const UniqueFd& fd, std::string& buffer, const std::string& name) {
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    const ssize_t got = ::read(fd.get(), buffer.data() + filled, buffer.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read " + quote(name));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return std::string_view(buffer).substr(0, filled);
}

}  // namespace

bool same_bytes(const FileState& left, const FileState& right) {
  const UniqueFd first = open_content(left), second = open_content(right);
  std::string one(256 << 10, '\0'), other(256 << 10, '\0');
  for (;;) {
    const std::string_view a = read_piece(first, one, left.name), b = read_piece(second, other, right.name);
    if (a != b) return false;
    if (a.empty()) return true;
  }
}

std::string FileState::content(std::size_t limit) const {
  std::string text;
  if (S_ISLNK(info.st_mode)) {
    text.resize(4096);
    const ssize_t size = ::readlinkat(directory, name.c_str(), text.data(), text.size());
    if (size < 0) throw system_error("read the symlink " + quote(name));
    text.resize(static_cast<std::size_t>(size));
    return text;
  }
  const UniqueFd file = open_content(*this);
  std::string buffer(64 << 10, '\0');
  for (;;) {
    const std::string_view piece = read_piece(file, buffer, name);
    if (piece.empty()) return text;
    if (text.size() + piece.size() > limit) throw failure(quote(name) + " grows while it is read");
    text += piece;
  }
}

void compare_trees(int upper, int lower, const std::function<void(const ChangedFile&)>& visit) {
  Comparison(visit).folder(upper, lower, "", 0);
}

}  // namespace dsec::layers
