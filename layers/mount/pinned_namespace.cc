// Nothing is mounted by a process in its own namespace: a thread that has joined the pinned one attaches detached
// mounts in it, and copies them out.
#include "layers/mount/pinned_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/directory_names.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "layers/mount/range_lock.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr long kErofsMagic = 0xE0F5E1E2;
constexpr std::uint64_t kPinByte = 0;  // shared: the pin stays as it is; exclusive: it is made or removed

fs::path lock_file(const fs::path& run) { return run / "mounts.lock"; }

// Names are hexadecimal digests, with or without a prefix: their last digits spread well over the bytes of a file.
std::uint64_t lock_byte(const std::string& name) {
  std::uint64_t byte = 0;
  const std::string_view digits = std::string_view(name).substr(name.size() > 15 ? name.size() - 15 : 0);
  std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  return byte + 1;
}

// Nothing but a tmpfs.
void fill_namespace() {
  FsContext context("tmpfs");
  context.set("source", "dsec");
  context.set("mode", "0700");
  context.create();
  const UniqueFd root = context.mount(MountFlags::kNoSuid | MountFlags::kNoDev | MountFlags::kNoExec);
  attach_mount(root.get(), "/");
  if (::fchdir(root.get()) != 0) throw system_error("enter a new tmpfs");
  // Where the root is the initial ramfs nothing can take its place; then the tmpfs stays on top of it.
  if (::syscall(SYS_pivot_root, ".", ".") == 0 && ::umount2(".", MNT_DETACH) != 0)
    throw system_error("leave the old root");
}

bool is_erofs(const UniqueFd& mount) {
  struct statfs kind {};
  return ::fstatfs(mount.get(), &kind) == 0 && static_cast<std::uint32_t>(kind.f_type) == kErofsMagic;
}

// Of the image under `name` in the calling thread's working directory. A directory whose mount was never made, because
// its maker was killed, counts as nothing.
UniqueFd clone_here(const std::string& name) {
  UniqueFd mount = try_clone_mount(AT_FDCWD, name.c_str());
  if (mount && !is_erofs(mount)) mount.reset();
  return mount;
}

std::vector<std::string> list_here() {
  std::vector<std::string> names = directory_names(AT_FDCWD, "the list of mounted images");
  std::erase_if(names, [](const std::string& name) { return name.front() == '.'; });
  return names;
}

}  // namespace

/// A thread that lives in the pinned namespace, with its root as working directory.
class PinnedNamespace::Thread {
 public:
  explicit Thread(NamespacePin::Found pin) : pin_(std::move(pin)) {
    // The promise is the thread's: whoever waits for it may be gone while it is still being kept.
    std::promise<void> joined;
    std::future<void> ready = joined.get_future();
    thread_ = std::thread([this, joined = std::move(joined)]() mutable { loop(joined); });
    try {
      ready.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }
  ~Thread() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  /// Whether the namespace is still the one that other processes find.
  bool current() const {
    struct stat facts {};
    return ::stat(pin_.path.c_str(), &facts) == 0 && facts.st_ino == pin_.inode;
  }

  void run(const std::function<void()>& action) {
    const std::lock_guard one_at_a_time(callers_);
    std::unique_lock lock(mutex_);
    action_ = &action;
    wake_.notify_one();
    done_.wait(lock, [&] { return action_ == nullptr; });
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  }

 private:
  void loop(std::promise<void>& joined) {
    block_signals();
    try {
      if (::unshare(CLONE_FS) != 0) throw system_error("separate a thread's directories");
      if (::setns(pin_.ns.get(), CLONE_NEWNS) != 0) throw system_error("join the mount namespace of the layers");
      joined.set_value();
    } catch (...) {
      joined.set_exception(std::current_exception());
      return;
    }
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || action_; });
      if (stop_) return;
      try {
        (*action_)();
      } catch (...) {
        failed_ = std::current_exception();
      }
      action_ = nullptr;
      done_.notify_one();
    }
  }

  NamespacePin::Found pin_;
  std::mutex callers_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* action_ = nullptr;
  std::exception_ptr failed_;
  bool stop_ = false;
  std::thread thread_;
};

PinnedNamespace::PinnedNamespace(fs::path run) : run_(fs::weakly_canonical(run)), pin_(run_ / "mntns") {}
PinnedNamespace::~PinnedNamespace() = default;

std::shared_ptr<PinnedNamespace::Thread> PinnedNamespace::join_existing() {
  const std::lock_guard lock(mutex_);
  if (thread_ && thread_->current()) return thread_;
  thread_.reset();
  if (auto pin = pin_.find()) thread_ = std::make_shared<Thread>(std::move(*pin));
  return thread_;
}

std::shared_ptr<PinnedNamespace::Thread> PinnedNamespace::join_or_create() {
  if (auto thread = join_existing()) return thread;
  return attempt("cannot make the mount namespace of the layers", [&] {
    if (::geteuid() != 0)
      throw failure("mounting layers needs root").hint("run it with sudo, naming the same DSEC_HOME");
    const RangeLock lock(lock_file(run_), kPinByte, RangeLock::Mode::Exclusive);
    if (!pin_.find()) pin_.make(fill_namespace);
    auto thread = join_existing();
    if (!thread) throw Error(ErrorKind::Internal, "it was bound, but cannot be found");
    return thread;
  });
}

std::vector<UniqueFd> PinnedNamespace::clone(std::span<const std::string> names) {
  std::vector<UniqueFd> mounts;
  mounts.reserve(names.size());
  join_or_create()->run([&] {
    for (const std::string& name : names) mounts.push_back(clone_here(name));
  });
  return mounts;
}

UniqueFd PinnedNamespace::place(const std::string& name, const std::function<UniqueFd()>& mount) {
  const RangeLock name_lock(lock_file(run_), lock_byte(name), RangeLock::Mode::Exclusive);
  for (;;) {
    (void)join_or_create();
    const RangeLock pin_lock(lock_file(run_), kPinByte, RangeLock::Mode::Shared);
    const auto thread = join_existing();
    if (!thread) continue;  // given up by another process before the lock was ours
    UniqueFd copy;
    thread->run([&] { copy = clone_here(name); });
    if (copy) return copy;
    const UniqueFd made = mount();
    thread->run([&] {
      if (::mkdir(name.c_str(), 0700) != 0 && errno != EEXIST) throw system_error("make directory " + quote(name));
      attach_mount(made.get(), AT_FDCWD, name);
      copy = clone_mount(AT_FDCWD, name);
    });
    return copy;
  }
}

std::vector<std::string> PinnedNamespace::names() {
  std::vector<std::string> names;
  if (const auto thread = join_existing()) thread->run([&] { names = list_here(); });
  return names;
}

bool PinnedNamespace::remove(const std::string& name) {
  const RangeLock name_lock(lock_file(run_), lock_byte(name), RangeLock::Mode::Exclusive, RangeLock::Wait::No);
  if (!name_lock) return false;
  bool was_mounted = false;
  if (const auto thread = join_existing())
    thread->run([&] {
      while (::umount2(name.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH) == 0) was_mounted = true;
      if (errno != EINVAL && errno != ENOENT) throw system_error("unmount image " + quote(name));
      if (::rmdir(name.c_str()) != 0 && errno != ENOENT) throw system_error("remove directory " + quote(name));
    });
  return was_mounted;
}

void PinnedNamespace::unpin_if_empty() {
  const RangeLock pin_lock(lock_file(run_), kPinByte, RangeLock::Mode::Exclusive, RangeLock::Wait::No);
  if (!pin_lock || !names().empty()) return;
  {
    const std::lock_guard lock(mutex_);
    thread_.reset();
  }
  if (::geteuid() == 0) pin_.remove();
}

}  // namespace dsec::layers
