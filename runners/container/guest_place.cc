#include "runners/container/guest_place.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/base/namespace_pin.h"
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

// Of what the calling thread sees, which is a copy of the host's mounts.
void fill_namespace(const fs::path& place) {
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
}

NamespacePin pin_in(const fs::path& place) { return NamespacePin(place / "mntns"); }

fs::path lock_in(const fs::path& place) { return place / "lock"; }

UniqueFd make_namespace(const fs::path& place) {
  const NamespacePin pin = pin_in(place);
  const FileLock lock(lock_in(place), FileLock::Mode::Exclusive);
  std::optional<NamespacePin::Found> found = pin.find();
  if (!found) {
    pin.make([&] { fill_namespace(place); });
    found = pin.find();
  }
  if (!found) throw Error(ErrorKind::Internal, "it was bound, but cannot be found");
  return std::move(found->ns);
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
    if (kept_ || begun_.valid()) return;
    if (auto found = pin_in(place).find()) {
      kept_ = std::make_shared<const UniqueFd>(std::move(found->ns));
    } else {
      begun_ = std::async(std::launch::async, make_namespace, place);
    }
  } catch (const std::exception&) {
    // Whoever needs it makes it, and tells why it cannot.
  }
}

std::shared_ptr<const UniqueFd> GuestPlace::keeper_namespace() {
  prepare();
  const std::lock_guard lock(mutex_);
  if (!kept_)
    kept_ = attempt("cannot make the mount namespace of the keepers", [&] {
      return std::make_shared<const UniqueFd>(begun_.valid() ? begun_.get() : make_namespace(path_));
    });
  return kept_;
}

void GuestPlace::release() {
  const std::lock_guard lock(mutex_);
  if (begun_.valid()) begun_.wait();
  begun_ = {};
  kept_.reset();
  const fs::path place = run_ / kName;
  std::error_code ignored;
  if (::geteuid() != 0 || !fs::exists(place, ignored)) return;
  // Whoever was killed while it was made may have left half of it.
  if (const FileLock alone = FileLock::try_lock(lock_in(place), FileLock::Mode::Exclusive)) pin_in(place).remove();
}

}  // namespace dsec::runners
