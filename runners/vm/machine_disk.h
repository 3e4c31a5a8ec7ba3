#pragma once

#include <cstdint>
#include <filesystem>

#include "core/engine/machine_disks.h"
#include "runners/isolation/cgroups.h"
#include "runners/vm/machine_spec.h"

namespace dsec::runners {

/// The writable disk of one machine, below the directory of its sandbox: `disk`, and what belongs to its server. Any
/// process may have an object of it. All throw Error.
class MachineDisk {
 public:
  MachineDisk(engine::MachineDisks& disks, std::filesystem::path sandbox)
      : disks_(disks), sandbox_(std::move(sandbox)) {}

  /// Of an empty ext4, `bytes` long, which all machines of the home have in common until they write.
  void create_empty(const std::filesystem::path& home, std::uint64_t bytes);
  /// Of what another one showed when it was sealed.
  void create_from(const std::filesystem::path& snapshot);
  bool exists() const;

  /// Starts what serves it where the machine's VMM finds it, in the groups of the sandbox, unless it runs.
  void serve(const SandboxCgroups& cgroups);
  /// The drive `id` of a machine: its VMM sees kMachineInside.
  static MachineDrive drive(const std::string& id);

  /// Makes the directory `snapshot` of what the disk shows now; whoever wants files of the guest in it has the guest
  /// write them out before, and stand still.
  void seal(const std::filesystem::path& snapshot);

  /// What of it is in the directory of a sandbox, for reclaim().
  static constexpr const char* kFiles[] = {"disk", "disk.control", "disk.lock", "disk.log"};

 private:
  std::filesystem::path place() const { return sandbox_ / kFiles[0]; }

  engine::MachineDisks& disks_;
  const std::filesystem::path sandbox_;
};

}  // namespace dsec::runners
