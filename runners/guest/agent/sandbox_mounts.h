#pragma once

#include <asm/errno.h>

#include "runners/guest/config.h"

namespace dsec::guest {

/// What is put into the sandbox beside its root, in this order.
struct Mounts {
  struct {
    int fd;
    wire::MountKind kind;
    Text target;
  } items[kMaxMounts];
  unsigned count;

  bool add(long fd, wire::MountKind kind, Text target, Failure& failure) {
    if (fd < 0) return failure.set("copy the mount for", target.data, fd), false;
    if (count == kMaxMounts) return failure.set("mount more than there is room for at", target.data, -ENOSPC), false;
    items[count++] = {static_cast<int>(fd), kind, target};
    return true;
  }
};

/// /dev, /sys, then what the configuration says: filesystems in memory, files, disks. Texts stay in the configuration.
bool add_places(Mounts& mounts, Failure& failure);
bool add_memory_filesystems(Mounts& mounts, wire::Reader& reader, Failure& failure);
bool add_files(Mounts& mounts, wire::Reader& reader, const Text& machine_id, Failure& failure);
bool add_disks(Mounts& mounts, wire::Reader& reader, Failure& failure);

}  // namespace dsec::guest
