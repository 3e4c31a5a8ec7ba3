#include <linux/if.h>
#include <linux/mount.h>
#include <linux/sockios.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"
#include "runners/isolation/device_list.h"

namespace dsec::guest {
namespace {

constexpr unsigned long kBind = 4096, kRecursive = 16384, kPrivate = 1u << 18;
constexpr unsigned kCharacterDevice = 0020000;

// "PARENT/NAME", both short and ours. The next call reuses it.
const char* below(const char* parent, const char* name) {
  static char path[64];
  const size_t size = strlen(parent);
  memcpy(path, parent, size);
  path[size] = '/';
  memcpy(path + size + 1, name, strlen(name) + 1);
  return path;
}

template <unsigned Count>
bool make_directories(const char* parent, const char* const (&names)[Count], Failure& failure) {
  for (const char* name : names) {
    const long made = make_directory(below(parent, name), 0755);
    if (made < 0) return failure.set("make the directory", name, made), false;
  }
  return true;
}

bool make_devices(const char* dev, Failure& failure) {
  sys(__NR_umask, 0);
  bool ok = true;
  for (const runners::DeviceNode& device : runners::kDevices) {
    const long made =
        sys(__NR_mknodat, -100, below(dev, device.name), kCharacterDevice | 0666, device.major << 8 | device.minor);
    if (made >= 0 || !ok) continue;
    failure.set("make the device", device.name, made);
    ok = false;
  }
  for (const runners::DeviceLink& link : runners::kDeviceLinks)
    sys(__NR_symlinkat, link.target, -100, below(dev, link.name));
  const long console = open_at(-100, below(dev, "console"), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  if (console >= 0) close_fd(static_cast<int>(console));
  sys(__NR_umask, 022);
  return ok;
}

bool raise_loopback(Failure& failure) {
  const long fd = sys(__NR_socket, 2, 2 /* SOCK_DGRAM */ | O_CLOEXEC, 0);
  struct {
    char name[IFNAMSIZ];
    short flags;
    char rest[22];
  } request = {"lo", IFF_UP, {}};
  const long done = fd < 0 ? fd : sys(__NR_ioctl, fd, SIOCSIFFLAGS, &request);
  if (fd >= 0) close_fd(static_cast<int>(fd));
  if (done < 0) return failure.set("raise", "the loopback", done), false;
  return true;
}

// The root of keepers: they see the machine's processes, and nothing else of it.
long fill_keepers_namespace() {
  long done = mount_at(nullptr, "/", nullptr, kPrivate | kRecursive, nullptr);
  if (done >= 0) done = mount_at("/place", "/place", nullptr, kBind, nullptr);
  if (done >= 0) done = mount_at("/proc", "/place/proc", nullptr, kBind, nullptr);
  if (done >= 0) done = sys(__NR_chdir, "/place");
  if (done >= 0) done = sys(__NR_pivot_root, ".", ".");
  if (done >= 0) done = sys(__NR_umount2, ".", 2 /* MNT_DETACH */);
  return done < 0 ? done : open_at(-100, "/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
}

}  // namespace

bool make_places(Failure& failure) {
  static constexpr const char* kTop[] = {"base", "devs", "place", "syss", "files", "t", "d", "run/keeper"};
  static constexpr const char* kBase[] = {"dev", "proc", "sys", "etc"};
  static constexpr const char* kPlace[] = {"empty", "proc", "root"};
  static constexpr const char* kDev[] = {"pts", "shm", "mqueue"};
  static constexpr const char* kSys[] = {"devices", "devices/system", "kernel", "kernel/mm",
                                         "fs",      "fs/cgroup",      "class",  "block"};
  if (!make_directories("", kTop, failure) || !make_directories("/base", kBase, failure) ||
      !make_directories("/place", kPlace, failure) || !make_directories("/syss", kSys, failure))
    return false;
  sys(__NR_fchmodat, -100, "/place/empty", 0555);
  sys(__NR_fchmodat, -100, "/run/keeper", 0700);
  if (agent.flags & channel::kPrivileged) return make_directories("/dev", kDev, failure);
  return make_directories("/devs", kDev, failure) && make_devices("/devs", failure);
}

bool make_namespaces(int& keepers, Failure& failure) {
  const long own = open_at(-100, "/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  long made = own < 0 ? own : sys(__NR_unshare, CLONE_NEWNS);
  if (made >= 0) made = fill_keepers_namespace();
  const long back = own < 0 ? own : sys(__NR_setns, own, CLONE_NEWNS);
  if (made < 0) return failure.set("make the namespace of", "keepers", made), false;
  if (back < 0) return failure.set("return to", "the mounts of the agent", back), false;
  close_fd(static_cast<int>(own));
  keepers = static_cast<int>(made);

  agent.network = -1;
  if (agent.flags & channel::kGuestNetwork) return load_modules("net", failure);
  const long outside = open_at(-100, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  long network = outside < 0 ? outside : sys(__NR_unshare, CLONE_NEWNET);
  const bool raised = network >= 0 && raise_loopback(failure);
  if (network >= 0) network = open_at(-100, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (outside >= 0) sys(__NR_setns, outside, CLONE_NEWNET), close_fd(static_cast<int>(outside));
  if (network < 0) return failure.set("make", "a network namespace", network), false;
  agent.network = static_cast<int>(network);
  return raised;
}

long copy_mount(const char* path, uint64_t attributes, bool with_submounts) {
  constexpr unsigned kRecursiveAt = 0x8000, kEmptyPath = 0x1000;
  const unsigned below = with_submounts ? kRecursiveAt : 0;
  const long mount = sys(__NR_open_tree, -100, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | below);
  if (mount < 0 || !attributes) return mount;
  mount_attr wanted = {};
  wanted.attr_set = attributes;
  const long set = sys(__NR_mount_setattr, mount, "", kEmptyPath | below, &wanted, sizeof wanted);
  if (set >= 0) return mount;
  close_fd(static_cast<int>(mount));
  return set;
}

}  // namespace dsec::guest
