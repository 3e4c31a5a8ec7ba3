#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

#include <linux/memfd.h>
#include <linux/prctl.h>

namespace dsec::guest {
namespace {

constexpr unsigned long kMove = 8192, kNoSuid = 2, kNoDev = 4, kNoExec = 8;
constexpr int kAddSeals = 1033, kAllSeals = 0xf;

Buffer command_line;

// Of a program that lies in the initramfs; nobody can write to it, and who executes it cannot be looked into.
long seal_copy(const char* path, unsigned mode) {
  const long file = open_at(-100, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return file;
  const long copy = sys(__NR_memfd_create, "dsec", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  static char chunk[64u << 10];
  long got = copy;
  while (copy >= 0 && (got = read_fd(static_cast<int>(file), chunk, sizeof chunk)) > 0)
    if (const long put = write_fd(static_cast<int>(copy), chunk, static_cast<size_t>(got)); put != got)
      return put < 0 ? put : -EIO;
  close_fd(static_cast<int>(file));
  if (got < 0) return got;
  sys(__NR_fchmod, copy, mode);
  const long sealed = sys(__NR_fcntl, copy, kAddSeals, kAllSeals);
  return sealed < 0 ? sealed : copy;
}

// It is the last that the kernel ends for lack of memory, and so is what it starts, up to the commands.
void live_long() {
  const long score = open_at(-100, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0) write_fd(static_cast<int>(score), "-999", 4), close_fd(static_cast<int>(score));
}

bool seal_programs(const char* own, const char* helper_path, Failure& failure) {
  const long program = seal_copy(own, 0111), helper = seal_copy(helper_path, 0500);
  if (program < 0) return failure.set("copy", own, program), false;
  if (helper < 0) return failure.set("copy", helper_path, helper), false;
  agent.program = static_cast<int>(program);
  agent.helper = static_cast<int>(helper);
  return true;
}

// The first root is what pivot_root(2) refuses to leave.
bool change_root(Failure& failure) {
  long done = mount_at("dsec", "/new", "tmpfs", kNoSuid, "mode=0755");
  if (done < 0) return failure.set("mount", "the root of the agent", done), false;
  static constexpr const char* kMoved[] = {"/dev", "/proc", "/sys"};
  make_directory("/new/run", 0755);
  for (const char* name : kMoved) {
    char target[16] = "/new";
    memcpy(target + 4, name, strlen(name) + 1);
    make_directory(target, 0755);
    done = mount_at(name, target, nullptr, kMove, nullptr);
    if (done < 0) return failure.set("move the mount", name, done), false;
  }
  done = sys(__NR_chdir, "/new");
  if (done >= 0) done = mount_at(".", "/", nullptr, kMove, nullptr);
  if (done >= 0) done = sys(__NR_chroot, ".");
  if (done >= 0) done = sys(__NR_chdir, "/");
  if (done < 0) return failure.set("change to", "the root of the agent", done), false;
  return true;
}

}  // namespace

const char* kernel_argument(const char* name) {
  const size_t length = strlen(name);
  const char* at = command_line.data;
  while (at && *at) {
    if (begins_with(at, name) && at[length] == '=') {
      // Cut at its end: nobody needs the rest as one text.
      char* end = const_cast<char*>(at + length + 1);
      while (*end && *end != ' ' && *end != '\n') ++end;
      *end = '\0';
      return at + length + 1;
    }
    while (*at && *at != ' ') ++at;
    if (*at == ' ' || (at < command_line.data + command_line.size && !*at)) ++at;
  }
  return nullptr;
}

bool boot(Failure& failure) {
  sys(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
  sys(__NR_umask, 022);
  const struct {
    const char *type, *target;
    unsigned long flags;
  } mounts[] = {{"devtmpfs", "/dev", kNoSuid | kNoExec},
                {"proc", "/proc", kNoSuid | kNoExec | kNoDev},
                {"sysfs", "/sys", kNoSuid | kNoExec | kNoDev}};
  for (const auto& mount : mounts) {
    const long done = mount_at(mount.type, mount.target, mount.type, mount.flags, nullptr);
    // The kernel may have mounted /dev itself.
    if (done < 0 && done != -EBUSY) return failure.set("mount", mount.target, done), false;
  }
  if (!read_small(-100, "/proc/cmdline", command_line)) return failure.set("read", "/proc/cmdline", -EIO), false;
  live_long();

  const long modules = open_at(-100, "/modules", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  agent.modules = modules < 0 ? -1 : static_cast<int>(modules);
  if (!load_modules("boot", failure)) return false;
  const char* const drives = kernel_argument("dsec.drives");
  agent.late_drives = drives && same_text(drives, "late");
  if (agent.late_drives && !release_drives(failure)) return false;
  if (!seal_programs("/init", "/bin/dsec-guest", failure)) return false;
  sys(__NR_unlinkat, -100, "/bin/dsec-guest", 0);
  if (!change_root(failure)) return false;
  const long groups = mount_at("cgroup2", "/sys/fs/cgroup", "cgroup2", kNoSuid | kNoExec | kNoDev, nullptr);
  if (groups < 0) return failure.set("mount", "the control groups", groups), false;
  return true;
}

bool boot_service(Failure& failure) {
  constexpr unsigned long kBind = 4096, kRecursive = 16384, kPrivate = 1u << 18;
  sys(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
  sys(__NR_umask, 022);
  live_long();
  agent.service = true;
  if (!seal_programs("/proc/self/exe", "/usr/lib/dsec/dsec-guest", failure)) return false;
  long done = sys(__NR_unshare, CLONE_NEWNS);
  if (done >= 0) done = mount_at(nullptr, "/", nullptr, kPrivate | kRecursive, nullptr);
  if (done >= 0) done = mount_at("dsec", "/run", "tmpfs", kNoSuid, "mode=0755");
  if (done < 0) return failure.set("make", "the root of the agent", done), false;
  make_directory("/run/run", 0755);
  static constexpr const char* kBound[] = {"/dev", "/proc", "/sys"};
  for (const char* name : kBound) {
    char target[16] = "/run";
    memcpy(target + 4, name, strlen(name) + 1);
    make_directory(target, 0755);
    done = mount_at(name, target, nullptr, kBind | kRecursive, nullptr);
    if (done < 0) return failure.set("bind", name, done), false;
  }
  done = sys(__NR_chdir, "/run");
  if (done >= 0) done = sys(__NR_pivot_root, ".", ".");
  if (done >= 0) done = sys(__NR_umount2, ".", 2 /* MNT_DETACH */);
  if (done >= 0) done = sys(__NR_chdir, "/");
  if (done < 0) return failure.set("change to", "the root of the agent", done), false;
  return true;
}

}  // namespace dsec::guest
