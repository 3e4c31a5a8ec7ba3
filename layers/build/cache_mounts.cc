#include "layers/build/cache_mounts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <optional>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/engine/sandbox_id.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

using Sharing = dockerfile::RunMount::Sharing;

constexpr std::time_t kForgottenAfter = 30 * 24 * 3600;
constexpr int kMostPrivate = 64;
// Of a folder that is being removed, and that nobody can want any more.
constexpr std::string_view kGone = ".gone-";

// A lock on a file that was removed in the meantime keeps nobody out.
bool still_there(const FileLock& lock, const fs::path& path) {
  struct stat held {
  }, there{};
  return ::fstat(lock.fd(), &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_dev == there.st_dev &&
         held.st_ino == there.st_ino;
}

/// Empty when gc has removed the folder meanwhile, and it has to be made again.
std::optional<FileLock> lock_of(const fs::path& path, FileLock::Mode mode, bool wait) {
  try {
    return wait ? FileLock(path, mode) : FileLock::try_lock(path, mode);
  } catch (const Error&) {
    if (fs::exists(path.parent_path())) throw;
    return std::nullopt;
  }
}

void make_data(const fs::path& folder, const dockerfile::RunMount& mount) {
  const fs::path data = folder / "data";
  if (fs::exists(data)) return;
  // Under another name until it is as it should be: a crash must not leave one with the wrong owner.
  const fs::path fresh = folder / ".new";
  remove_tree(fresh);
  make_directories(fresh, 0755);
  if (::chown(fresh.c_str(), mount.uid.value_or(0), mount.gid.value_or(0)) != 0 ||
      ::chmod(fresh.c_str(), mount.mode.value_or(0755)) != 0)
    throw system_error("set the owner and mode of " + quote(fresh.native()));
  if (::rename(fresh.c_str(), data.c_str()) != 0) throw system_error("rename " + quote(fresh.native()));
}

// Out of reach of those who take it, at once: what they make meanwhile under its name is theirs. Its lock is ours.
void remove_at_once(const fs::path& folder) {
  const fs::path gone = folder.parent_path() / (std::string(kGone) + engine::random_id(12));
  if (::rename(folder.c_str(), gone.c_str()) != 0) throw system_error("rename " + quote(folder.native()));
  remove_tree(gone);
}

}  // namespace

CacheMounts::Held CacheMounts::hold(const dockerfile::RunMount& mount) {
  const std::string name = Digest::of(mount.id).hex().substr(0, 32);
  const auto mode = mount.sharing == Sharing::Shared ? FileLock::Mode::Shared : FileLock::Mode::Exclusive;
  for (int number = 0;;) {
    const fs::path folder = directory_ / (number == 0 ? name : name + "-" + std::to_string(number));
    const fs::path path = folder / "lock";
    make_directories(folder, 0700);
    const bool another = mount.sharing == Sharing::Private && number < kMostPrivate;
    std::optional<FileLock> lock = lock_of(path, mode, !another);
    if (!lock) continue;
    if (!*lock) {
      ++number;
      continue;
    }
    if (!still_there(*lock, path)) continue;
    {
      // Those that share it begin one after the other.
      const FileLock beginning(folder / "begin", FileLock::Mode::Exclusive);
      make_data(folder, mount);
      write_file_atomic(folder / "id", mount.id, 0600);
    }
    return {folder / "data", *std::move(lock)};
  }
}

std::vector<CacheMounts::Entry> CacheMounts::prune(bool all, bool dry_run,
                                                   const std::function<std::uint64_t(const fs::path&)>& size,
                                                   std::vector<std::string>& problems) {
  std::vector<Entry> pruned;
  std::error_code none;
  for (fs::directory_iterator at(directory_, none), end; !none && at != end; at.increment(none)) {
    const fs::path folder = at->path();
    struct stat used {};
    const bool whole = ::stat((folder / "id").c_str(), &used) == 0;
    if (!all && whole && used.st_mtime + kForgottenAfter >= std::time(nullptr)) continue;
    try {
      if (folder.filename().native().starts_with(kGone)) {
        if (!dry_run) remove_tree(folder);
        continue;
      }
      const FileLock lock = FileLock::try_lock(folder / "lock", FileLock::Mode::Exclusive);
      if (!lock) continue;
      Entry entry{whole ? read_file(folder / "id", 64 << 10) : folder.filename().native(), size(folder)};
      if (!dry_run) remove_at_once(folder);
      pruned.push_back(std::move(entry));
    } catch (const Error& error) {
      problems.push_back(error.message());
    }
  }
  return pruned;
}

}  // namespace dsec::layers
