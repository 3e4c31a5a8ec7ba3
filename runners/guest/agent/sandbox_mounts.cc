#include "runners/guest/agent/sandbox_mounts.h"

#include <asm/signal.h>
#include <linux/mount.h>

#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr uint64_t kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
constexpr uint64_t kFixed = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | kQuiet;

constexpr char kMachineId[] = "/etc/machine-id";

Text text_of(const char* text) { return {text, static_cast<uint32_t>(strlen(text))}; }

// A path of the agent's own for the n-th of a kind: "/files/3". The next call reuses it.
const char* numbered(const char* parent, uint32_t number) {
  static char path[32];
  const size_t size = strlen(parent);
  memcpy(path, parent, size);
  path[size] = '/';
  write_number(path + size + 1, number);
  return path;
}

bool add_file(Mounts& mounts, uint32_t number, const Text& target, const Text& content, Failure& failure) {
  const char* const path = numbered("/files", number);
  const long file = open_at(-100, path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  const long put = file < 0 ? file : write_fd(static_cast<int>(file), content.data, content.size);
  if (file >= 0) close_fd(static_cast<int>(file));
  if (put != static_cast<long>(content.size)) return failure.set("write", target.data, put < 0 ? put : -ENOSPC), false;
  const bool machine_id = same_text(target.data, kMachineId);
  if (!machine_id && !make_mount_point(target.data, failure)) return false;
  return mounts.add(copy_mount(path, MOUNT_ATTR_NODEV | kQuiet),
                    machine_id ? wire::MountKind::Optional : wire::MountKind::File, target, failure);
}

}  // namespace

bool add_places(Mounts& mounts, Failure& failure) {
  using wire::MountKind;
  if (agent.flags & channel::kPrivileged) {
    return mounts.add(copy_mount("/dev", 0), MountKind::Place, text_of("/dev"), failure) &&
           mounts.add(copy_mount("/sys", 0, true), MountKind::Place, text_of("/sys"), failure);
  }
  return mounts.add(copy_mount("/devs", MOUNT_ATTR_RDONLY | kQuiet), MountKind::Place, text_of("/dev"), failure) &&
         mounts.add(copy_mount("/syss", kFixed), MountKind::Place, text_of("/sys"), failure) &&
         mounts.add(copy_mount("/sys/devices/system", kFixed), MountKind::Optional, text_of("/sys/devices/system"),
                    failure) &&
         mounts.add(copy_mount("/sys/kernel/mm", kFixed), MountKind::Optional, text_of("/sys/kernel/mm"), failure);
}

bool add_memory_filesystems(Mounts& mounts, wire::Reader& reader, Failure& failure) {
  const uint32_t count = reader.u32();
  for (uint32_t i = 0; reader.ok() && i < count; ++i) {
    const Text target = reader.str();
    const uint64_t size = reader.u64();
    if (!reader.ok()) break;
    const char* const path = numbered("/t", i);
    make_directory(path, 0755);
    Buffer options = {};
    options.append("mode=1777");
    if (size) options.append(",size="), options.append_number(static_cast<int64_t>(size));
    options.append("", 1);
    const long done = mount_at("dsec", path, "tmpfs", 2 | 4 /* MS_NOSUID, MS_NODEV */, options.data);
    options.clear();
    if (done < 0) return failure.set("make a filesystem in memory for", target.data, done), false;
    if (!mounts.add(copy_mount(path, 0), wire::MountKind::Directory, target, failure)) return false;
  }
  return reader.ok() || unreadable(failure);
}

bool add_files(Mounts& mounts, wire::Reader& reader, const Text& machine_id, Failure& failure) {
  // The first, which Renew writes again.
  Buffer line = {};
  if (machine_id.size) line.append(machine_id.data, machine_id.size), line.append("\n");
  const Text content = {line.data, static_cast<uint32_t>(line.size)};
  if (line.size && !add_file(mounts, 0, text_of(kMachineId), content, failure)) return false;
  agent.machine_id_bound = line.size;
  line.clear();
  const uint32_t count = reader.u32();
  for (uint32_t i = 0; reader.ok() && i < count; ++i) {
    const Text target = reader.str(), text = reader.str();
    if (!reader.ok()) break;
    if (!add_file(mounts, i + 1, target, text, failure)) return false;
    if (same_text(target.data, "/etc/hostname")) agent.hostname_file = i + 1;
    if (i < kMostBound) agent.bound[i] = target;
  }
  return reader.ok() || unreadable(failure);
}

// In the sandbox's namespace of mounts, which a child of ours joins, as who has joined has another root.
long attach_in_sandbox(int mount, const char* path) {
  const long init = sys(__NR_pidfd_open, agent.init, 0);
  if (init < 0) return init;
  const long pid = sys(__NR_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    long done = sys(__NR_setns, init, CLONE_NEWNS);
    const long place = done < 0 ? done : open_in_root(agent.root, path, O_PATH);
    if (done >= 0) done = place;
    // Layers that have no such file need none.
    if (done == -ENOENT) exit_now(0);
    if (done >= 0) done = sys(__NR_move_mount, mount, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    exit_now(done < 0 ? static_cast<int>(-done) : 0);
  }
  close_fd(static_cast<int>(init));
  if (pid < 0) return pid;
  int status = 0;
  const long waited = sys(__NR_wait4, pid, &status, 0, nullptr);
  return waited < 0 ? waited : status & 0x7f ? -EINTR : -(status >> 8 & 0xff);
}

long set_machine_id(const Text& machine_id) {
  const char* const path = numbered("/files", 0);
  const long file = open_at(-100, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return file;
  long done = write_fd(static_cast<int>(file), machine_id.data, machine_id.size);
  if (done >= 0) done = write_fd(static_cast<int>(file), "\n", 1);
  close_fd(static_cast<int>(file));
  if (done < 0 || agent.machine_id_bound) return done < 0 ? done : 0;
  const long mount = copy_mount(path, MOUNT_ATTR_NODEV | kQuiet);
  if (mount < 0) return mount;
  done = attach_in_sandbox(static_cast<int>(mount), kMachineId);
  close_fd(static_cast<int>(mount));
  agent.machine_id_bound = done >= 0;
  return done;
}

// The same file, which is mounted.
long rewrite_file(const Text& path, const Text& content) {
  for (uint32_t i = 0; i < kMostBound; ++i) {
    if (!path.size || agent.bound[i].size != path.size || memcmp(agent.bound[i].data, path.data, path.size) != 0)
      continue;
    const long file = open_at(-100, numbered("/files", i + 1), O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (file < 0) return file;
    const long put = write_fd(static_cast<int>(file), content.data, content.size);
    close_fd(static_cast<int>(file));
    return put < 0 ? put : put == static_cast<long>(content.size) ? 0 : -ENOSPC;
  }
  return -ENOENT;
}

bool add_disks(Mounts& mounts, wire::Reader& reader, Failure& failure) {
  const uint32_t count = reader.u32();
  for (uint32_t i = 0; reader.ok() && i < count; ++i) {
    const Text target = reader.str(), device = reader.str();
    if (!reader.ok()) break;
    const char* const path = numbered("/d", i);
    if (!mount_disk(device.data, path, failure)) return false;
    if (!mounts.add(copy_mount(path, 0), wire::MountKind::Directory, target, failure)) return false;
  }
  return (reader.ok() && reader.left() == 0) || unreadable(failure);
}

}  // namespace dsec::guest
