#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/progress.h"
#include "layers/dir/debootstrap_source.h"
#include "layers/disk/disk_image.h"

namespace dsec::layers {

/// A disk with a Debian system that begins by itself, and the agent in it.
struct BootableRequest {
  DebootstrapRequest system;        ///< its spool: where the disk is made
  std::uint64_t size = 4ull << 30;  ///< bytes of the disk, a multiple of 1 MiB
  std::string firmware = "bios";    ///< "bios", "uefi": what machines with the disk begin with; it has loaders for both
  std::string agent, helper;        ///< the programs dsec-init and dsec-guest
};

/// Makes the disk with mmdebstrap, mke2fs, mkfs.fat, mtools and syslinux, and takes it into the store. Needs root, and
/// no loop device. Root of the system has no password; kernel and login are on the serial port, too. The system has no
/// machine id and no host name before it begins. Throws Error.
engine::StoredLayer build_bootable(engine::LayerStore& store, const BootableRequest& request,
                                   const ImportOptions& options, Progress& progress);

}  // namespace dsec::layers
