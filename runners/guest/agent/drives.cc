#include "runners/guest/agent/agent.h"
#include "runners/guest/agent/directory.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

constexpr unsigned kPause = 3, kWait = 10'000;

// The disk that says this serial of itself: "/dev/vdX".
bool find_serial(const char* serial, Buffer& path) {
  return find_entry(-100, "/sys/block", [&](const char* disk) {
    Buffer file = {}, said = {};
    file.append("/sys/block/");
    file.append(disk);
    file.append("/serial", sizeof "/serial");
    bool same = read_small(-100, file.data, said);
    if (same && said.size && said.data[said.size - 1] == '\n') said.data[--said.size] = '\0';
    same = same && same_text(said.data, serial);
    file.clear();
    said.clear();
    if (!same) return false;
    path.size = 0;
    path.append("/dev/");
    path.append(disk, strlen(disk) + 1);
    return true;
  });
}

}  // namespace

const char* find_drive(const Text& wanted, Buffer& path) {
  const bool named = wanted.size && wanted.data[0] == '/';
  for (unsigned waited = 0; waited <= kWait; waited += kPause, sleep_ms(kPause)) {
    if (!named) {
      if (find_serial(wanted.data, path)) return path.data;
      while (agent.late_drives && take_next_drive())
        if (find_serial(wanted.data, path)) return path.data;
      continue;
    }
    const long there = open_at(-100, wanted.data, O_PATH | O_CLOEXEC);
    if (there < 0) continue;
    close_fd(static_cast<int>(there));
    return wanted.data;
  }
  return nullptr;
}

}  // namespace dsec::guest
