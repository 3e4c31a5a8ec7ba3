#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runners/vm/module_table.h"

namespace dsec::runners {

/// Modules that are loaded together, in this order; the agent loads "boot" always, the others when the machine has what
/// they are for.
struct ModuleGroup {
  std::string name;
  std::vector<std::filesystem::path> files;
};

/// What a machine's guest needs of this kernel. Throws Error naming what it lacks: without drives, a channel, EROFS,
/// overlayfs and ext4 there is no guest.
std::vector<ModuleGroup> choose_modules(ModuleTable& table);

/// Whether sandboxes of its guests can be held to a network policy.
bool can_carry_egress(const ModuleTable& table);

/// The part of an initramfs that comes of the kernel: directories, a console, modules (unpacked, so that any kernel
/// loads them) and the lists of their order.
std::string pack_modules(const std::vector<ModuleGroup>& groups);

/// The part that comes of this dsec: `init` is dsec-init, `helper` is dsec-guest.
std::string pack_programs(std::string_view init, std::string_view helper);

}  // namespace dsec::runners
