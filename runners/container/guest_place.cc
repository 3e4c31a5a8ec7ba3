#include "runners/container/guest_place.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "runners/isolation/sandbox_paths.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

// Part of the name, so that a dsec with another content makes its own.
constexpr char kName[] = "guest-2";

void make_device(const fs::path& path, unsigned major_number, unsigned minor_number) {
  if (::mknod(path.c_str(), S_IFCHR | 0666, ::makedev(major_number, minor_number)) != 0)
    throw system_error("make device " + quote(path.native()));
  // Whatever the umask.
  if (::chmod(path.c_str(), 0666) != 0) throw system_error("set the mode of " + quote(path.native()));
}

void make_file(const fs::path& path, std::string_view content) {
  const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
  write_all(file.get(), content);
}

void fill(const fs::path& place) {
  fill_dev(place / "dev");
  for (const char* name : {"sys/devices/system", "sys/kernel/mm", "sys/fs/cgroup", "sys/class", "sys/block"})
    make_directories(place / name);
  for (const char* name : {"base/dev", "base/proc", "base/sys", "base/etc", "empty", "proc", "root", "files"})
    make_directories(place / name);
  for (const char* name : {"hosts", "hostname", "resolv.conf"}) make_file(place / "base/etc" / name, "");
  ::chmod((place / "empty").c_str(), 0555);
}

// For the small files that each sandbox has of its own: on the disk each costs more than all of its content. Without a
// limit of its own, since what one sandbox writes to its /etc/hosts must leave room for the others; it counts as the
// memory of who writes.
UniqueFd make_memory() {
  FsContext context("tmpfs");
  context.set("source", "dsec");
  context.set("mode", "1777");
  context.set("size", "0");
  context.set("nr_inodes", "0");
  context.create();
  return context.mount(MountFlags::kNoSuid | MountFlags::kNoDev | MountFlags::kNoExec);
}

// On a thread of its own, whose namespace nobody else shares.
UniqueFd make_namespace(const fs::path& place) {
  if (::unshare(CLONE_FS | CLONE_NEWNS) != 0) throw system_error("make a mount namespace");
  set_propagation("/", Propagation::Private, Submounts::With);
  const UniqueFd root = clone_mount(place);
  // A sandbox may mount its own /proc only where a whole one is visible already (the kernel's mount_too_revealing).
  const UniqueFd proc = clone_mount("/proc");
  set_mount_attributes(root.get(),
                       MountFlags::kReadOnly | MountFlags::kNoSuid | MountFlags::kNoDev | MountFlags::kNoExec);
  attach_mount(root.get(), place);
  attach_mount(proc.get(), root.get(), "proc");
  attach_mount(make_memory().get(), root.get(), "files");
  if (::fchdir(root.get()) != 0) throw system_error("enter " + quote(place.native()));
  if (::syscall(SYS_pivot_root, ".", ".") != 0) throw system_error("pivot_root to " + quote(place.native()));
  if (::umount2(".", MNT_DETACH) != 0) throw system_error("leave the host's mounts");
  return open_file("/proc/thread-self/ns/mnt", O_RDONLY);
}

}  // namespace

void fill_dev(const fs::path& dev) {
  for (const char* name : {"", "pts", "shm", "mqueue"}) make_directories(dev / name);
  for (const DeviceNode& device : kDevices) make_device(dev / device.name, device.major, device.minor);
  for (const DeviceLink& link : kDeviceLinks) fs::create_symlink(link.target, dev / link.name);
  make_file(dev / "console", "");
}

void GuestPlace::make() {
  const fs::path wanted = run_ / kName;
  std::error_code ignored;
  if (!fs::exists(wanted, ignored)) {
    make_directories(run_);
    const TempDirectory temporary(run_);
    const fs::path made = temporary.path() / kName;
    const mode_t old_mask = ::umask(022);
    try {
      fill(made);
    } catch (...) {
      ::umask(old_mask);
      throw;
    }
    ::umask(old_mask);
    // Another process may have been first; a directory with content is never replaced.
    if (::rename(made.c_str(), wanted.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST)
      throw system_error("rename to " + quote(wanted.native()));
  }
  path_ = wanted;
}

const fs::path& GuestPlace::path() {
  const std::lock_guard lock(mutex_);
  if (path_.empty()) attempt("cannot prepare what sandboxes share", [&] { make(); });
  return path_;
}

void GuestPlace::prepare() noexcept {
  try {
    const fs::path place = path();
    const std::lock_guard lock(mutex_);
    if (!kept_ && !begun_.valid()) begun_ = std::async(std::launch::async, make_namespace, place);
  } catch (const std::exception&) {
    // Whoever needs it makes it, and tells why it cannot.
  }
}

std::shared_ptr<const UniqueFd> GuestPlace::keeper_namespace() {
  const fs::path place = path();
  const std::lock_guard lock(mutex_);
  if (kept_) return kept_;
  std::future<UniqueFd> begun =
      begun_.valid() ? std::move(begun_) : std::async(std::launch::async, make_namespace, place);
  auto made = std::make_shared<const UniqueFd>(begun.get());
  if (std::exchange(again_, true)) kept_ = made;
  return made;
}

}  // namespace dsec::runners
