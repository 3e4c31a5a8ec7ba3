#pragma once

#include <cstdint>

#include "core/engine/runner.h"
#include "runners/container/guest_place.h"
#include "runners/container/launch.h"
#include "runners/isolation/cgroups.h"
#include "runners/vm/qemu.h"

namespace dsec::runners {

/// What a machine is started with beside its request, which has the disk.
struct FullParts {
  GuestPlace& place;
  KeeperSupply& keepers;
  const CgroupHost& cgroups;
  int program;  ///< load_guest_program()
  const std::filesystem::path& dsec;
  std::filesystem::path vmm;  ///< QEMU
  Accelerator accelerator;
};

/// Memory of a machine whose spec names none.
inline constexpr std::uint64_t kFullMemory = 1ull << 30;
/// What the VMM may use of the host: the machine's memory and its own.
Limits limits_of_full_vmm(const Limits& limits);

/// Returns the pid of the keeper, when the agent of the machine's system answers, or, of a disk without one, when the
/// machine has begun. Throws Error, and may leave what reclaim() removes.
int start_full_machine(const FullParts& parts, engine::RunnerRequest& request);

/// In the directory of a sandbox: what its machine has written, the variables of its UEFI, the seed of its cloud-init,
/// and an empty file that tells that the machine's system has an agent.
inline constexpr char kDiskTop[] = "disk.qcow2", kVariables[] = "variables.fd", kSeed[] = "seed.iso",
                      kAgentMark[] = "agent";

}  // namespace dsec::runners
