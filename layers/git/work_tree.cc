#include "layers/git/work_tree.h"

#include <fcntl.h>
#include <git2.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

#include "core/base/files.h"
#include "layers/git/tree_walk.h"
#include "layers/git/untracked.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

std::string without_cr_before_lf(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != '\r' || i + 1 == bytes.size() || bytes[i + 1] != '\n') out += bytes[i];
  return out;
}

// Opened for looking only, and never through a symlink on the way: a folder that became a link shows what is elsewhere.
UniqueFd find_in(int tree, const char* path) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, tree, path, &how, sizeof how)));
}

bool content_matches(const UniqueFd& place, const git_index_entry& entry, const struct stat& info,
                     const GitObjects& objects) {
  const ObjectId wanted = ObjectId::of(entry.id);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (S_ISLNK(info.st_mode)) {
    std::string target(size + 1, '\0');
    const ssize_t got = ::readlinkat(place.get(), "", target.data(), target.size());
    return got >= 0 && GitObjects::hash_blob({target.data(), static_cast<std::size_t>(got)}) == wanted;
  }
  // A conversion of line ends at most doubles a file; anything larger has changed, and is not read.
  if (size > 2 * objects.size(wanted)) return false;
  const UniqueFd fd(
      ::open(("/proc/self/fd/" + std::to_string(place.get())).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return false;
  const std::string bytes = read_all(fd.get(), size);
  return GitObjects::hash_blob(bytes) == wanted || GitObjects::hash_blob(without_cr_before_lf(bytes)) == wanted;
}

void compare_file(int tree, const git_index_entry& entry, const timespec& index_time, const GitObjects& objects,
                  WorkTreeState& state) {
  // Left out by a sparse checkout, or promised not to change.
  if ((entry.flags_extended & GIT_INDEX_ENTRY_SKIP_WORKTREE) || (entry.flags & GIT_INDEX_ENTRY_VALID)) return;
  if ((entry.mode & S_IFMT) == 0160000) return;  // a submodule is a repository of its own
  const UniqueFd place = find_in(tree, entry.path);
  struct stat info {};
  if (!place || ::fstat(place.get(), &info) < 0) {
    ++state.deleted;
    return;
  }
  const bool same_kind = (entry.mode & S_IFMT) == (info.st_mode & S_IFMT) &&
                         (!S_ISREG(info.st_mode) || (entry.mode & 0100) == (info.st_mode & 0100));
  if (!same_kind) {
    ++state.changed;
    return;
  }
  // The guess that git makes: equal size, time and inode. It does not hold for a file written after the index was,
  // since a second write within the same tick leaves the same time.
  const bool older =
      std::pair(info.st_mtim.tv_sec, info.st_mtim.tv_nsec) < std::pair(index_time.tv_sec, index_time.tv_nsec);
  const bool same_stat = older && entry.file_size == static_cast<std::uint32_t>(info.st_size) &&
                         entry.mtime.seconds == static_cast<std::int32_t>(info.st_mtim.tv_sec) &&
                         entry.ctime.seconds == static_cast<std::int32_t>(info.st_ctim.tv_sec) &&
                         entry.ino == static_cast<std::uint32_t>(info.st_ino);
  if (!same_stat && !content_matches(place, entry, info, objects)) ++state.changed;
}

void compare_with_head(const GitObjects& objects, git_index* index, WorkTreeState& state) {
  std::map<std::string, std::pair<std::uint32_t, ObjectId>> head;
  const GitTree tree(objects, objects.commit(objects.commit_of("HEAD")).tree, {});
  tree.walk([&](const GitFile& file) { head[file.path] = {file.index_mode(), file.id}; });
  for (std::size_t i = 0; i < git_index_entrycount(index); ++i) {
    const git_index_entry* entry = git_index_get_byindex(index, i);
    const auto found = head.find(entry->path);
    if (found == head.end() || found->second != std::pair{entry->mode, ObjectId::of(entry->id)}) ++state.staged;
    if (found != head.end()) head.erase(found);
  }
  state.staged += head.size();
}

}  // namespace

std::string WorkTreeState::summary() const {
  std::string text;
  for (const auto& [count, what] :
       {std::pair{staged, " staged"}, {changed, " changed"}, {deleted, " deleted"}, {untracked, " untracked"}})
    if (count > 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + what;
  return text;
}

WorkTreeState look_at_work_tree(const RepositoryFiles& files, const GitObjects& objects) {
  WorkTreeState state;
  try {
    const fs::path file = files.git_dir / "index";
    struct stat info {};
    if (::stat(file.c_str(), &info) < 0 && errno == ENOENT) return state;  // nothing was ever added
    if (!S_ISREG(info.st_mode)) throw failure("its index is no regular file");
    git_index* opened = nullptr;
    check_git(git_index_open(&opened, file.c_str()), "read its index");
    const GitPtr<git_index> index(opened);
    const UniqueFd tree = open_file(*files.work_tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (std::size_t i = 0; i < git_index_entrycount(opened); ++i)
      compare_file(tree.get(), *git_index_get_byindex(opened, i), info.st_mtim, objects, state);
    compare_with_head(objects, opened, state);
    state.untracked = count_untracked(*files.work_tree, opened, files.common_dir / "info/exclude");
  } catch (const Error& error) {
    state.unknown = error.message();
  }
  return state;
}

}  // namespace dsec::layers
