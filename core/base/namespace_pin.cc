// How a namespace is pinned. A mount namespace stays alive while its /proc/<pid>/ns/mnt file is bound somewhere; the
// kernel binds it only in an older namespace, and only where nothing propagates. So the file is first bound over itself
// and made private, and the namespace's file is bound on top of that. Copies of a mount namespace leave such bindings
// out: a process in a namespace of its own (a service with a private /tmp) looks through /proc/1/root instead.
#include "core/base/namespace_pin.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <future>
#include <thread>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"

namespace dsec {
namespace fs = std::filesystem;
namespace {

// `directory` as the first process sees it, when that is the same directory.
std::optional<fs::path> directory_of_first_process(const fs::path& directory) {
  const fs::path there = "/proc/1/root" + directory.native();
  struct stat ours {
  }, theirs{};
  if (::stat(directory.c_str(), &ours) != 0 || ::stat(there.c_str(), &theirs) != 0) return std::nullopt;
  if (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino) return std::nullopt;
  return there;
}

std::optional<NamespacePin::Found> open_pin(const fs::path& path) {
  UniqueFd ns(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct statfs kind {};
  struct stat facts {};
  if (!ns || ::fstatfs(ns.get(), &kind) != 0 || kind.f_type != NSFS_MAGIC || ::fstat(ns.get(), &facts) != 0)
    return std::nullopt;
  return NamespacePin::Found{std::move(ns), facts.st_ino, path};
}

// Runs `action` on a thread whose working directory, root and mount namespace may be changed.
void on_own_thread(const std::function<void()>& action) {
  std::exception_ptr failed;
  std::thread([&] {
    block_signals();
    try {
      if (::unshare(CLONE_FS) != 0) throw system_error("separate a thread's directories");
      action();
    } catch (...) {
      failed = std::current_exception();
    }
  }).join();
  if (failed) std::rethrow_exception(failed);
}

// Where the pin belongs: the first process's namespace, unless its directory is not to be seen there.
void enter_pinning_namespace(const fs::path& directory) {
  struct stat ours {
  }, theirs{};
  if (!directory_of_first_process(directory)) return;
  if (::stat("/proc/thread-self/ns/mnt", &ours) != 0 || ::stat("/proc/1/ns/mnt", &theirs) != 0) return;
  if (ours.st_ino == theirs.st_ino) return;
  const UniqueFd first(::open("/proc/1/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (first) (void)::setns(first.get(), CLONE_NEWNS);
}

void run_on(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    throw system_error("run on processor " + std::to_string(processor));
}

void bind_mount(const fs::path& from, const fs::path& to) {
  if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0)
    throw system_error("bind " + quote(from.native()) + " to " + quote(to.native()));
}

// Of one that is made on this processor, if any is given. 0 or an errno.
int try_to_bind_new_namespace(const fs::path& file, const std::function<void()>& fill, std::optional<int> processor) {
  std::promise<pid_t> made;
  std::promise<void> bound;
  std::thread maker([&] {
    try {
      if (processor) run_on(*processor);
      if (::unshare(CLONE_FS | CLONE_NEWNS) != 0) throw system_error("make a mount namespace");
      set_propagation("/", Propagation::Private, Submounts::With);
      fill();
      made.set_value(static_cast<pid_t>(::syscall(SYS_gettid)));
    } catch (...) {
      made.set_exception(std::current_exception());
      return;
    }
    bound.get_future().wait();
  });
  int failed = 0;
  try {
    const std::string made_one = "/proc/self/task/" + std::to_string(made.get_future().get()) + "/ns/mnt";
    if (::mount(made_one.c_str(), file.c_str(), nullptr, MS_BIND, nullptr) != 0) failed = errno;
  } catch (...) {
    maker.join();
    throw;
  }
  bound.set_value();
  maker.join();
  return failed;
}

// A namespace can be bound only in one with a lower number. Linux 6.18 gives each processor a range of numbers, so that
// one made now may have a lower number than ours, which somebody has made a moment ago: then another processor is
// tried.
void bind_new_namespace(const fs::path& file, const std::function<void()>& fill) {
  cpu_set_t processors;
  if (::sched_getaffinity(0, sizeof processors, &processors) != 0) CPU_ZERO(&processors);
  int failed = try_to_bind_new_namespace(file, fill, std::nullopt);
  for (int processor = 0; failed == EINVAL && processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &processors)) failed = try_to_bind_new_namespace(file, fill, processor);
  if (failed != 0) throw system_error("bind a new mount namespace to " + quote(file.native()), failed);
}

}  // namespace

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

std::optional<NamespacePin::Found> NamespacePin::find() const {
  if (auto pin = open_pin(file_)) return pin;
  if (const auto there = directory_of_first_process(file_.parent_path())) return open_pin(*there / file_.filename());
  return std::nullopt;
}

void NamespacePin::make(const std::function<void()>& fill) const {
  on_own_thread([&] {
    enter_pinning_namespace(file_.parent_path());
    (void)open_file(file_, O_RDWR | O_CREAT, 0600);
    if (!is_mount_root(file_)) bind_mount(file_, file_);
    set_propagation(file_, Propagation::Private);
    bind_new_namespace(file_, fill);
  });
}

void NamespacePin::remove() const {
  on_own_thread([&] {
    enter_pinning_namespace(file_.parent_path());
    while (is_mount_root(file_)) unmount(file_, UnmountMode::Lazy);
  });
}

}  // namespace dsec
