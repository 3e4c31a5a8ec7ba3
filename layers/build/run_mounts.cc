#include "layers/build/run_mounts.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/base/error.h"
#include "layers/dir/tree_writer.h"

namespace dsec::layers {
namespace fs = std::filesystem;
using dockerfile::RunMount;
namespace {

constexpr const char* kContent = "content";
constexpr const char* kScript = "/run/dsec-script";
constexpr std::uint32_t kSecretMode = 0400;

// Whether a file in memory can be shown with the sandbox's own ids: Linux 6.3 maps those of tmpfs.
bool has_memory_files() {
  utsname name{};
  struct statfs info {};
  unsigned major = 0, minor = 0;
  ::uname(&name);
  if (std::sscanf(name.release, "%u.%u", &major, &minor) != 2) return false;
  return (major > 6 || (major == 6 && minor >= 3)) && ::statfs("/dev/shm", &info) == 0 &&
         static_cast<unsigned long>(info.f_type) == TMPFS_MAGIC;
}

}  // namespace

void remove_stale_secrets(const fs::path& memory) {
  std::error_code none;
  for (fs::directory_iterator at(memory, none), end; !none && at != end; at.increment(none)) {
    struct stat info {};
    if (!temp_file_is_stale(at->path().filename().native()) || ::lstat(at->path().c_str(), &info) != 0 ||
        !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid())
      continue;
    try {
      remove_tree(at->path());
    } catch (const Error&) {
      // Another gc is at it.
    }
  }
}

dockerfile::CopyFiles bind_as_copy(const RunMount& mount) {
  dockerfile::CopyFiles copy;
  copy.sources = {mount.source};
  copy.to = std::string("/") + kContent;
  copy.keep_owners = true;
  copy.from_stage = mount.from_stage;
  copy.from_image = mount.from_image;
  return copy;
}

std::string RunMounts::target_of(const RunMount& mount) {
  const std::string target = set_.root.resolve(mount.target.substr(1));
  if (target.empty()) throw usage_error(quote(mount.target) + " is the root, where nothing can be mounted");
  mounts_.points.insert(target);
  return "/" + target;
}

void RunMounts::add_caches(std::span<const RunMount> mounts) {
  std::vector<const RunMount*> caches;
  for (const RunMount& mount : mounts)
    if (mount.kind == RunMount::Kind::Cache) caches.push_back(&mount);
  std::stable_sort(caches.begin(), caches.end(),
                   [](const RunMount* left, const RunMount* right) { return left->id < right->id; });
  CacheMounts store(set_.cache / "mounts");
  const RunMount* before = nullptr;
  for (const RunMount* mount : caches) {
    // One id at two places is one folder, whose lock is ours already.
    if (!before || before->id != mount->id) held_.push_back(store.hold(*mount));
    mounts_.binds.push_back({held_.back().folder.native(), target_of(*mount), !mount->writable});
    before = mount;
  }
}

void RunMounts::add_bind(const RunMount& mount, dockerfile::Selection& selection) {
  dockerfile::StackOrigin nothing;
  const std::unique_ptr<Source> source = selection.place(nothing, bind_as_copy(mount));
  const fs::path& folder = folders_.emplace_back(set_.cache / "build").path();
  Progress silent;
  source->examine({}, silent);
  TreeWriter writer(folder);
  source->emit(0, writer);
  writer.finish();
  mounts_.binds.push_back({(folder / kContent).native(), target_of(mount), !mount.writable});
}

void RunMounts::add_tmpfs(const RunMount& mount) { mounts_.tmpfs.push_back({target_of(mount), mount.size}); }

fs::path RunMounts::secret_folder() {
  if (!secrets_) {
    secrets_.emplace(has_memory_files() ? fs::path("/dev/shm") : set_.cache / "build");
    // The sandbox has the files by then, and nobody else should.
    mounts_.begun = [this] { secrets_.reset(); };
  }
  return secrets_->path();
}

void RunMounts::add_secret(const RunMount& mount) {
  const auto found = set_.secrets.find(mount.id);
  if (found == set_.secrets.end()) {
    if (!mount.required) return;
    throw usage_error("the secret " + quote(mount.id) + " is required, and not given")
        .hint("--secret id=" + mount.id + ",src=FILE");
  }
  const std::string value = attempt("read the secret " + quote(mount.id), [&] { return found->second.value(); });
  mounts_.secrets.push_back(value);
  if (!mount.variable.empty()) mounts_.secret_env[mount.variable] = value;
  if (mount.target.empty()) return;
  const fs::path path = secret_folder() / std::to_string(mounts_.binds.size());
  {
    const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    write_all(file.get(), value);
    if (::fchown(file.get(), mount.uid.value_or(0), mount.gid.value_or(0)) != 0 ||
        ::fchmod(file.get(), mount.mode.value_or(kSecretMode)) != 0)
      throw system_error("set the owner and mode of a secret's file");
  }
  mounts_.binds.push_back({path.native(), target_of(mount), true});
}

std::string RunMounts::add_script(const std::string& content) {
  const fs::path path = folders_.emplace_back(set_.cache / "build").path() / kContent;
  {
    const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    write_all(file.get(), content);
    if (::fchmod(file.get(), 0755) != 0) throw system_error("set the mode of " + quote(path.native()));
  }
  const std::string target = target_of({.target = kScript});
  mounts_.binds.push_back({path.native(), target, true});
  return target;
}

const StepMounts& RunMounts::mounts() {
  // What lies in another is mounted after it.
  std::stable_sort(mounts_.binds.begin(), mounts_.binds.end(),
                   [](const BindMount& left, const BindMount& right) { return left.target < right.target; });
  return mounts_;
}

}  // namespace dsec::layers
