#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runners/vm/machine_start.h"
#include "runners/vm/warm_store.h"

namespace dsec::runners {

/// What a sandbox's machine is, as it was begun with, in `machine.json` of the sandbox's directory, and of that which
/// is saved of it. See man/dsec-microvm.7.md.
struct MachineRecord {
  WarmMachine machine;       ///< all that a machine which goes on from its memory has to have, too
  std::string kernel_name;   ///< GuestKernel::name
  std::string release;       ///< of it
  bool late_drives = false;  ///< it has all places for drives, as what goes on from a saved guest does
  std::uint64_t clock = 0;   ///< WarmGuest::clock
  std::string boot;          ///< WarmGuest::boot
  // Of one that was saved:
  std::string vmm;           ///< "7.2.22"
  std::string state_digest;  ///< of SavedSandbox::files.state
};

/// What was saved of a sandbox with all that runs in it.
struct SavedSandbox {
  MachineRecord record;
  MachineSnapshot files;
  std::filesystem::path disk;  ///< see MachineDisk::seal(); empty: it has none
};

/// `images`: of its layers, of which MachineParts::mapped says which are memory.
MachineRecord describe_machine(const MachineParts& parts, const GuestKernel& kernel, const Limits& limits,
                               const std::vector<engine::ImageFiles>& images);

/// What is other now than it was; empty: nothing.
std::string misfit(const MachineRecord& then, const MachineRecord& now);

void write_machine_record(const std::filesystem::path& directory, const MachineRecord& record);
/// Throws Error, also when another version of dsec has written it.
MachineRecord read_machine_record(const std::filesystem::path& directory);

/// The files that belong below a directory.
SavedSandbox saved_sandbox_in(const std::filesystem::path& directory);
/// Reads its record; throws Error when it is damaged, cut off or no such directory. Pages of its memory are read when
/// they are used, and not before.
SavedSandbox read_saved_sandbox(const std::filesystem::path& directory);

}  // namespace dsec::runners
