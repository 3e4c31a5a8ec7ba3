#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/model/layer_manifest.h"
#include "runners/vm/qemu.h"

namespace dsec::runners {

/// A machine that begins as a computer does, from its disk. All paths are as the VMM sees them.
struct FullMachine {
  unsigned cpus = 2;
  std::uint64_t memory = 1ull << 30;  ///< bytes, a multiple of 1 MiB
  std::filesystem::path disk;         ///< read-only
  std::string format;                 ///< of it: "raw", "qcow2"
  std::filesystem::path top;          ///< what the machine writes: make_disk_top()
  std::filesystem::path seed;         ///< a CD for cloud-init; empty: none
  struct Uefi {
    std::filesystem::path code, variables;
  };
  std::optional<Uefi> uefi;  ///< none: BIOS
  /// Sockets that the VMM listens at: the byte channel, the monitor, the screen.
  std::filesystem::path channel, control, screen;
};

/// The arguments of QEMU for such a machine: q35, a standard VGA, a USB tablet, a PS/2 keyboard, and a serial port that
/// is its standard input and output.
std::vector<std::string> full_machine_command(const std::filesystem::path& qemu, Accelerator accelerator,
                                              const FullMachine& machine);

/// What lies upon a disk: an empty qcow2 file for a disk of `size` bytes, into which the machine's writes go. What is
/// below is no part of it: the machine is told. Throws Error.
void make_disk_top(const std::filesystem::path& file, std::uint64_t size);

/// Where Debian's package ovmf has the firmware; throws Error when it is not there.
FullMachine::Uefi find_uefi();

}  // namespace dsec::runners
