#pragma once

#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::layers {

/// What the process that holds a disk gives to each that serves it: control, nbd, below as in disk_protocol.h.
struct DiskDescriptors {
  UniqueFd control, nbd;
  std::vector<UniqueFd> below;
};

/// The words after which its processes know what they are.
inline constexpr char kHoldDisk[] = "hold", kServeDisk[] = "serve";

/// `ready`: an end of a pipe, which whoever serves the disk writes a byte to.
void start_holder(const std::string& program, const std::string& disk, const DiskDescriptors& descriptors, int ready);

/// Keeps the descriptors, and starts `program` to serve the disk as often as what serves it is killed. Returns its exit
/// code when it has ended by itself. `ready`: for the first one, as above.
int hold_disk(const std::string& program, const std::string& disk, const DiskDescriptors& descriptors, UniqueFd ready);

}  // namespace dsec::layers
