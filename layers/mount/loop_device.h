#pragma once

#include <string>

#include "core/base/unique_fd.h"

namespace dsec::layers {

/// A read-only loop device over a file, for kernels and filesystems that cannot mount EROFS from a file. It frees
/// itself when the last user closes it: keep `fd` until the mount exists.
struct LoopDevice {
  UniqueFd fd;
  std::string path;  ///< "/dev/loop3"
};

/// Throws Error when the host has no loop devices.
LoopDevice attach_loop_device(int file, const std::string& name);

}  // namespace dsec::layers
