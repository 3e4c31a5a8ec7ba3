#pragma once

#include <filesystem>
#include <memory>

#include "core/engine/home.h"
#include "core/engine/runner.h"

namespace dsec::runners {

/// Sandboxes that are whole computers with a disk and a screen: man/dsec-fullvm.7.md. What concerns their keepers is
/// done by `containers`, and what goes through the channel of a machine by `machines`; both have to live as long. Needs
/// root. All calls may be made from several threads.
/// `dsec`: as make_container_runner().
std::unique_ptr<engine::Runner> make_full_runner(const engine::Home& home, engine::Runner& containers,
                                                 engine::Runner& machines, const std::filesystem::path& dsec = {});

}  // namespace dsec::runners
