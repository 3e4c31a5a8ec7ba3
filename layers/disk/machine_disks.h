#pragma once

#include <memory>

#include "core/engine/machine_disks.h"

namespace dsec::layers {

/// Disks of OverlayBD layers, each served by a process of dsec-disk.
std::unique_ptr<engine::MachineDisks> make_machine_disks();

}  // namespace dsec::layers
