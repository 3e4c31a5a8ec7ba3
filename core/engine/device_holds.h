#pragma once

#include <vector>

#include "core/base/files.h"
#include "core/engine/home.h"
#include "core/model/sandbox_spec.h"

namespace dsec::engine {

/// Takes the devices that a spec names for one sandbox, and adds those that it gets for its GpuWish to spec.devices. A
/// device is held by a lock on run/devices/<major>-<minor>: exclusive, or shared by all who do not ask for it alone.
/// The locks go with the last descriptor of them, so whoever keeps these as long as the sandbox lives leaves nothing
/// behind. Throws Error (Usage) for what is no character device, and (Failed) when one is taken, naming who has it.
std::vector<FileLock> hold_devices(const Home& home, SandboxSpec& spec);

}  // namespace dsec::engine
