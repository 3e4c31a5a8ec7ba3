#pragma once

#include <filesystem>
#include <vector>

#include "core/model/sandbox_spec.h"

namespace dsec::runners {

/// Throws Error (Usage) for a device that a sandbox has already, or that would hide what it has.
void check_devices(const std::vector<DeviceGrant>& devices);

/// The /dev of a sandbox that is given devices, as the directory `dev` that must not exist: what all have, and nodes of
/// the devices with owner and mode of those on the host. Owners are those seen inside. Throws Error.
void make_device_tree(const std::filesystem::path& dev, const std::vector<DeviceGrant>& devices);

}  // namespace dsec::runners
