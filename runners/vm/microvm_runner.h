#pragma once

#include <filesystem>
#include <memory>

#include "core/engine/home.h"
#include "core/engine/machine_disks.h"
#include "core/engine/runner.h"

namespace dsec::runners {

/// Sandboxes behind kernels of their own: man/dsec-microvm.7.md. What concerns their keepers is done by `containers`,
/// which has to live as long. Needs root. All calls may be made from several threads.
/// `disks`: those of its machines; lives as long, too. `dsec`: as make_container_runner().
std::unique_ptr<engine::Runner> make_microvm_runner(const engine::Home& home, engine::Runner& containers,
                                                    engine::MachineDisks& disks,
                                                    const std::filesystem::path& dsec = {});

}  // namespace dsec::runners
