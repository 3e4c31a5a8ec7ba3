#include "core/engine/written_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace dsec::engine {
namespace {

// False when it has gone meanwhile. Names inside may be swapped for links at any moment, and none is followed.
bool look_at(int layer, const std::string& path, struct stat& info) {
  open_how how = {};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const UniqueFd file(static_cast<int>(
      ::syscall(SYS_openat2, layer, path.substr(path.find_first_not_of('/')).c_str(), &how, sizeof how)));
  return file && ::fstat(file.get(), &info) == 0;
}

bool same_time(const timespec& one, const timespec& other) {
  return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

// The change time moves with contents, mode, owner and attributes alike.
bool same_file(const struct stat& one, const struct stat& other) {
  return one.st_ino == other.st_ino && one.st_size == other.st_size && same_time(one.st_ctim, other.st_ctim);
}

}  // namespace

WrittenFiles::WrittenFiles(LocalEngine& engine, std::string id)
    : engine_(engine), id_(std::move(id)), layer_(engine.open_writable_layer(id_)), seen_(see()) {}

std::map<std::string, WrittenFiles::Seen> WrittenFiles::see() const {
  std::map<std::string, Seen> seen;
  for (Change& change : engine_.diff(id_)) {
    Seen now{change.kind, {}};
    if (change.kind == Change::Kind::Deleted || look_at(layer_.get(), change.path, now.info))
      seen.emplace(std::move(change.path), now);
  }
  return seen;
}

std::vector<WrittenFile> WrittenFiles::look() {
  using Kind = Change::Kind;
  std::map<std::string, Seen> now = see();
  std::vector<WrittenFile> written;
  const auto tell = [&](Kind kind, const std::string& path, const Seen& file) {
    const bool sized = kind != Kind::Deleted && S_ISREG(file.info.st_mode);
    written.push_back({{kind, path}, sized ? static_cast<std::uint64_t>(file.info.st_size) : 0});
  };
  for (const auto& [path, file] : now) {
    const auto found = seen_.find(path);
    const Seen* const before = found == seen_.end() ? nullptr : &found->second;
    if (file.kind == Kind::Deleted) {
      if (!before || before->kind != Kind::Deleted) tell(Kind::Deleted, path, file);
    } else if (!before) {
      if (file.kind == Kind::Added || !S_ISDIR(file.info.st_mode)) tell(file.kind, path, file);
    } else if (before->kind == Kind::Deleted) {
      tell(Kind::Added, path, file);
    } else if (!S_ISDIR(file.info.st_mode) && !same_file(before->info, file.info)) {
      tell(Kind::Modified, path, file);
    }
  }
  // What a layer has below was put back, if it could be at all; the rest was only ever here.
  for (const auto& [path, file] : seen_)
    if (file.kind == Kind::Added && !now.contains(path)) tell(Kind::Deleted, path, file);
  std::sort(written.begin(), written.end(),
            [](const WrittenFile& one, const WrittenFile& other) { return one.change.path < other.change.path; });
  seen_ = std::move(now);
  return written;
}

}  // namespace dsec::engine
