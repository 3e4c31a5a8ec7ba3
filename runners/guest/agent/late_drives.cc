#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/directory.h"
#include "runners/guest/sys.h"

// The memory of a guest whose sandbox is still to come may be saved, and gone on with beside other drives. What the
// kernel knows of a drive it has learned when its driver took it: so the driver has none of them meanwhile.

namespace dsec::guest {
namespace {

constexpr char kDriver[] = "/sys/bus/virtio/drivers/virtio_blk/", kDevices[] = "/sys/bus/virtio/devices/";
constexpr char kBlockDevice[] = "0x0002\n";

long write_name(const char* file, const char* name) {
  Buffer path = {};
  path.append(kDriver);
  path.append(file);
  path.append("", 1);
  const long fd = open_at(-100, path.data, O_WRONLY | O_CLOEXEC);
  path.clear();
  if (fd < 0) return fd;
  const long done = write_fd(static_cast<int>(fd), name, strlen(name));
  close_fd(static_cast<int>(fd));
  return done;
}

// The number in "virtio7"; 0 of what is not called so.
uint32_t number_of(const char* name) {
  if (!begins_with(name, "virtio") || !name[6]) return 0;
  uint32_t number = 0;
  for (const char* at = name + 6; *at; ++at) {
    if (*at < '0' || *at > '9' || number > 10'000) return 0;
    number = number * 10 + static_cast<uint32_t>(*at - '0');
  }
  return number + 1;
}

bool is_free_drive(const char* name) {
  Buffer path = {}, kind = {};
  path.append(kDevices);
  path.append(name);
  const size_t base = path.size;
  path.append("/device", sizeof "/device");
  bool free = read_small(-100, path.data, kind) && same_text(kind.data, kBlockDevice);
  path.size = base;
  path.append("/driver", sizeof "/driver");
  const long driver = free ? open_at(-100, path.data, O_PATH | O_CLOEXEC) : -ENOENT;
  if (driver >= 0) {
    free = false;
    close_fd(static_cast<int>(driver));
  }
  path.clear();
  kind.clear();
  return free;
}

}  // namespace

bool release_drives(Failure& failure) {
  // One at a time: what is listed changes with each.
  for (;;) {
    char name[32] = {};
    const bool found = find_entry(-100, kDriver, [&](const char* entry) {
      if (!number_of(entry) || strlen(entry) >= sizeof name) return false;
      memcpy(name, entry, strlen(entry) + 1);
      return true;
    });
    if (!found) return true;
    const long done = write_name("unbind", name);
    if (done < 0) return failure.set("release", "a drive", done), false;
  }
}

void find_new_devices() {
  const long fd = open_at(-100, "/sys/bus/pci/rescan", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;  // what is not there then is missed by who asks for it
  write_fd(static_cast<int>(fd), "1", 1);
  close_fd(static_cast<int>(fd));
}

bool take_next_drive() {
  char next[32] = {};
  uint32_t lowest = ~0u;
  find_entry(-100, kDevices, [&](const char* entry) {
    const uint32_t number = number_of(entry);
    if (!number || number >= lowest || strlen(entry) >= sizeof next || !is_free_drive(entry)) return false;
    lowest = number;
    memcpy(next, entry, strlen(entry) + 1);
    return false;
  });
  return lowest != ~0u && write_name("bind", next) >= 0;
}

}  // namespace dsec::guest
