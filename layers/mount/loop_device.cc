#include "layers/mount/loop_device.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace dsec::layers {
namespace {

// Another process may take the free device between asking for it and using it.
constexpr int kAttempts = 64;

loop_config config_for(int file, const std::string& name) {
  loop_config config{};
  config.fd = static_cast<__u32>(file);
  // Direct I/O, because EROFS caches what it reads; the kernel drops the wish where the file cannot do it.
  config.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
  std::memcpy(config.info.lo_file_name, name.data(), std::min<std::size_t>(name.size(), LO_NAME_SIZE - 1));
  return config;
}

// Some stacked filesystems promise direct I/O and then cannot do it, because the one below them cannot (overlayfs over
// tmpfs before Linux 6.6): only trying tells.
void drop_direct_io_unless_it_works(const UniqueFd& device) {
  char block[512];
  if (::pread(device.get(), block, sizeof block, 0) >= 0) return;
  (void)::ioctl(device.get(), LOOP_SET_DIRECT_IO, 0UL);
}

}  // namespace

LoopDevice attach_loop_device(int file, const std::string& name) {
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control)
    throw system_error("open '/dev/loop-control'")
        .hint("load the module: modprobe loop")
        .hint("in a container, give it /dev/loop-control and the loop devices, or run dsec on the host");
  const loop_config config = config_for(file, name);
  for (int i = 0; i < kAttempts; ++i) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) throw system_error("find a free loop device");
    LoopDevice device{{}, "/dev/loop" + std::to_string(number)};
    device.fd = UniqueFd(::open(device.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!device.fd)
      throw system_error("open " + quote(device.path)).hint("the device node must exist: is /dev a devtmpfs?");
    if (::ioctl(device.fd.get(), LOOP_CONFIGURE, &config) == 0) {
      drop_direct_io_unless_it_works(device.fd);
      return device;
    }
    if (errno != EBUSY) throw system_error("attach a loop device to " + quote(name));
  }
  throw failure("no free loop device could be got in " + std::to_string(kAttempts) + " attempts");
}

}  // namespace dsec::layers
