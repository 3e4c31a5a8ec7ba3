#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/engine/machine_disks.h"
#include "core/engine/runner.h"
#include "runners/container/guest_place.h"
#include "runners/container/launch.h"
#include "runners/egress/egress.h"
#include "runners/isolation/cgroups.h"
#include "runners/vm/qemu.h"
#include "runners/vm/vmm.h"
#include "runners/vm/warm_store.h"

namespace dsec::runners {

/// What a machine is started with beside its request.
struct MachineParts {
  GuestPlace& place;
  KeeperSupply& keepers;
  const CgroupHost& cgroups;
  int program;  ///< load_guest_program()
  const std::filesystem::path& dsec;
  const Egress& egress;
  engine::MachineDisks* disks;  ///< null: of machines without one
  std::filesystem::path home;
  std::filesystem::path vmm;  ///< QEMU
  Accelerator accelerator;
  std::filesystem::path kernel, initramfs;
  MachineSnapshot warm;        ///< the saved guest that it goes on from; empty: its kernel begins
  bool pmem = false;           ///< it has room for images in memory
  std::vector<bool> mapped;    ///< which of its images are that; none of a machine that is saved
  bool late_drives = false;    ///< it has all places for drives, see warm_spec()
  bool has_sandbox = false;    ///< the guest was saved with a sandbox, and that goes on as this one
  std::filesystem::path disk;  ///< what that sandbox's disk showed, see MachineDisk::seal(); empty: it had none
  std::uint64_t clock = 0;     ///< kHz that a kernel which begins is told of its processor's counter; 0: nothing
};

/// The saved guest does not go on: nothing is known of why that would pass.
class RestoreFailed : public Error {
 public:
  explicit RestoreFailed(Error error) : Error(std::move(error)) {}
};

/// Memory and processors of a machine whose spec names none, and the size of its disk (which is empty at first, and
/// takes what is written to it).
inline constexpr std::uint64_t kMachineMemory = 512ull << 20, kMachineDisk = 10ull << 30;
unsigned machine_cpus(const Limits& limits);
/// What the VMM may use of the host: the guest's memory and its own.
Limits limits_of_vmm(const Limits& limits);

/// The machine that a saved guest has to be of, for a sandbox with such limits, and with or without images in memory.
WarmMachine warm_machine(const MachineParts& parts, const GuestKernel& kernel, const Limits& limits, bool pmem);

/// Returns the pid of the keeper when the guest's sandbox runs. Throws Error, and may leave what reclaim() removes.
int start_machine(const MachineParts& parts, engine::RunnerRequest& request);

/// What is saved of a sandbox that is made for that, in its directory.
MachineSnapshot saved_files(const std::filesystem::path& directory);

/// Begins a guest and saves it as saved_files() before it is told of a sandbox. What was made for it is left to
/// reclaim(), also when this throws Error.
void save_machine(const MachineParts& parts, engine::RunnerRequest& request);

}  // namespace dsec::runners
