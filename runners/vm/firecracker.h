#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "runners/vm/vmm.h"

namespace dsec::runners {

/// How the jailer confines one Firecracker.
struct Jail {
  std::filesystem::path jailer;  ///< the program
  std::string id;                ///< 1 to 64 of [a-zA-Z0-9-]
  std::uint32_t uid = 0, gid = 0;
  std::filesystem::path base = "/srv/jailer";
  std::filesystem::path network_namespace;  ///< a file; empty: the caller's own
  std::string parent_cgroup;                ///< of v2; empty: none
  std::vector<std::string> cgroup_values;   ///< "memory.max=1073741824"
  std::uint64_t open_files = 0;             ///< 0: the jailer's own limit
};

/// Firecracker, confined by its jailer where there is a `jail`; the paths of a machine are then those inside of it.
std::unique_ptr<Vmm> make_firecracker(std::filesystem::path program, std::optional<Jail> jail);
/// Where the jail's root is: what a machine needs is to lie below it.
std::filesystem::path root_of_jail(const Jail& jail, const std::filesystem::path& program);

/// What goes beyond every VMM's MachineControl.
enum class MemoryBackend {
  File,       ///< the memory file, mapped privately: it must stay as it is while the machine lives
  Userfault,  ///< pages come from who listens at the unix socket `MachineSnapshot::memory`
};
struct FirecrackerLoad {
  MemoryBackend backend = MemoryBackend::File;
  bool track_writes = false;      ///< so that a later snapshot can be a difference
  bool resume = false;            ///< at once
  std::filesystem::path channel;  ///< other than when it was saved; empty: the same
};
class FirecrackerControl : public MachineControl {
 public:
  using MachineControl::load;
  virtual void load(const MachineSnapshot& from, const FirecrackerLoad& how) = 0;
  /// Only what was written since the machine was loaded or saved, when its writes are tracked.
  virtual void save_difference(const MachineSnapshot& to) = 0;
  /// While the machine runs. Throws Error for a drive that it does not have.
  virtual void limit_drive(const std::string& id, const DriveRate& rate) = 0;
  /// Makes it write its figures to where they go.
  virtual void flush_metrics() = 0;
  virtual std::string version() = 0;
};
std::unique_ptr<FirecrackerControl> connect_firecracker(const std::filesystem::path& socket,
                                                        std::chrono::milliseconds patience);

/// A connection to `port` of the guest through Firecracker's hybrid vsock: its unix socket at `channel`, on which one
/// asks by name of the port. Throws Error, also when nobody listens there within `patience`.
UniqueFd connect_vsock(const std::filesystem::path& channel, std::uint32_t port, std::chrono::milliseconds patience);

}  // namespace dsec::runners
