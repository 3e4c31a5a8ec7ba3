#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "runners/container/guest_place.h"
#include "runners/container/launch.h"
#include "runners/protocol/wire.h"
#include "runners/vm/qemu.h"

namespace dsec::runners {

/// What a VMM sees instead of the host: its program with libraries, its guest's files, /dev/kvm, and a directory for
/// its sockets. All of it is read-only but the disk and that directory, and belongs to root of its user namespace.
struct MachineRoot {
  struct Part {
    UniqueFd mount;
    wire::MountKind kind{};
    std::string target;
  };
  UniqueFd root;
  std::vector<Part> parts;
};

/// A file of the host and where the VMM finds it.
struct MachineFile {
  std::filesystem::path source;
  std::string target;
  bool writable = false;
};

/// Where the VMM's sockets are, for it and below a sandbox's directory.
inline constexpr char kMachineDirectory[] = "machine";
inline constexpr char kMachineInside[] = "/machine";

/// `directory`: of the sandbox, in which `machine` is made. Throws Error.
MachineRoot make_machine_root(GuestPlace& place, const std::filesystem::path& directory, int user_namespace,
                              Accelerator accelerator, const std::vector<MachineFile>& files);

/// Gives it to the keeper that starts the VMM. `network`: the VMM's namespace. Throws Error.
void send_machine_root(KeeperLaunch& keeper, const MachineRoot& root, int network);

}  // namespace dsec::runners
