#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runners/vm/kernel_store.h"
#include "runners/vm/machine_spec.h"
#include "runners/vm/qemu.h"
#include "runners/vm/vmm.h"

namespace dsec::runners {

/// The machine that a saved guest is of. Another one would read its memory as something else, or not at all: all of
/// this has to be the same.
struct WarmMachine {
  std::uint64_t memory = 0;
  unsigned cpus = 0;
  bool pmem = false;                         ///< it has room for images in memory
  std::map<std::string, std::string> parts;  ///< what else, by what it is called for people: "kernel", "QEMU", …
  bool operator==(const WarmMachine&) const = default;
};

/// A guest that was saved before it had a sandbox. See man/dsec-microvm.7.md.
struct WarmGuest {
  std::string name;
  WarmMachine machine;
  std::string kernel;       ///< release
  std::string vmm;          ///< "7.2.22"
  std::uint64_t made = 0;   ///< seconds since the epoch
  std::uint64_t bytes = 0;  ///< that its files take on the disk
  std::uint64_t clock = 0;  ///< kHz of the processor's counter, as its kernel was told; 0: it was not
  std::string boot;         ///< of the host, during which that was measured
  MachineSnapshot files;    ///< what is not its memory, which has that digest, and its memory
  std::string state_digest;
};

/// Of a machine on this host. `argv`: what its VMM is started with, without drives and clock.
WarmMachine describe_warm_machine(const GuestKernel& kernel, const std::filesystem::path& vmm, Accelerator accelerator,
                                  std::uint64_t memory, unsigned cpus, bool pmem, const std::vector<std::string>& argv);

/// Puts what was saved of it, which is moved, in the place of one of an equal machine. Throws Error.
WarmGuest keep_warm_guest(const std::filesystem::path& home, WarmGuest guest, const MachineSnapshot& saved);

/// Empty when there is none that is whole and fits.
std::optional<WarmGuest> find_warm_guest(const std::filesystem::path& home, const WarmMachine& machine);

/// By name. What cannot be read is told in `problems`.
std::vector<WarmGuest> list_warm_guests(const std::filesystem::path& home, std::vector<std::string>& problems);

/// What of a saved guest is other than `machine`, which is that of its size here; empty: it fits.
std::string misfit(const WarmGuest& guest, const WarmMachine& machine);

/// What of a machine is other now than it was, "other QEMU, kernel"; empty: nothing.
std::string misfit(const WarmMachine& then, const WarmMachine& now);
/// Whether the processor's counter runs at the rate, in kHz, that was measured during this boot of a host; 0: nobody
/// counts by it.
bool counts_alike(std::uint64_t khz, const std::string& boot);

/// False when there is none of that name.
bool remove_warm_guest(const std::filesystem::path& home, const std::string& name);

/// What the host calls this boot of it.
std::string host_boot();

}  // namespace dsec::runners
