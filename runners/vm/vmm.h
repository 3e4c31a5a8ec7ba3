#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runners/vm/machine_spec.h"

namespace dsec::runners {

enum class MachineState { NotStarted, Running, Paused, Ended };

/// Where a snapshot of a machine lies, as the VMM sees it: its devices and processors, and its memory.
struct MachineSnapshot {
  std::filesystem::path state, memory;
};

/// A living VMM, by its control socket. One thread. Every call ends after `kControlPatience` at the latest, whatever
/// the VMM does; it throws Error when the VMM refuses, is silent, or talks nonsense.
class MachineControl {
 public:
  virtual ~MachineControl() = default;

  /// The guest begins. Of one whose snapshot was loaded: goes on.
  virtual void boot(const MachineSpec& spec) = 0;
  virtual MachineState state() = 0;
  virtual void pause() = 0;
  virtual void resume() = 0;
  /// How much of its memory the guest is to give back, in bytes; it does so in its own time.
  virtual void set_balloon(std::uint64_t bytes) = 0;
  virtual GuestMemory memory() = 0;
  /// Of a machine that is paused, and stays so.
  virtual void save(const MachineSnapshot& to) = 0;
  /// Instead of boot(), into a VMM that was started for the same machine; it is paused then.
  virtual void load(const MachineSnapshot& from) = 0;
  /// The VMM ends without asking the guest.
  virtual void quit() = 0;
};
inline constexpr std::chrono::seconds kControlPatience{30};
/// Of a snapshot, whose length is that of the memory.
inline constexpr std::chrono::minutes kSnapshotPatience{10};

/// How a kind of VMM is started and talked to.
class Vmm {
 public:
  virtual ~Vmm() = default;

  /// "qemu" or "firecracker".
  virtual const std::string& name() const = 0;
  /// Throws Error naming what of `spec` it cannot do.
  virtual void check(const MachineSpec& spec) const = 0;
  /// What is executed; argv[0] is its program, as an absolute path on this host.
  virtual std::vector<std::string> command(const MachineSpec& spec) const = 0;
  /// Waits until the VMM listens, at most `patience`. `socket`: as this process sees it.
  virtual std::unique_ptr<MachineControl> control(const std::filesystem::path& socket,
                                                  std::chrono::milliseconds patience) const = 0;
};

/// Throws Error for what no VMM of ours can do: no processors, memory that is no multiple of 1 MiB, names that are
/// taken twice or are no names.
void check_machine(const MachineSpec& spec);

}  // namespace dsec::runners
