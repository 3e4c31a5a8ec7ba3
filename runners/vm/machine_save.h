#pragma once

#include <filesystem>

#include "core/engine/machine_disks.h"

namespace dsec::runners {

/// Saves the machine of a sandbox that runs, with its disk, as read_saved_sandbox() finds it in `into`, an empty
/// directory. Its guest is quiesced and its VMM stopped meanwhile; both go on when this returns, throws, or its process
/// ends. Throws Error.
void save_running_machine(engine::MachineDisks& disks, const std::filesystem::path& directory,
                          const std::filesystem::path& into, const std::filesystem::path& vmm);

}  // namespace dsec::runners
