#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/unique_fd.h"
#include "runners/vm/vmm.h"

namespace dsec::runners {

enum class Accelerator { Kvm, Tcg };
std::string_view to_string(Accelerator accelerator);

/// QEMU's `microvm` machine: a processor, memory, virtio devices, and nothing else.
/// `program`: its absolute path. Throws nothing.
std::unique_ptr<Vmm> make_qemu(std::filesystem::path program, Accelerator accelerator);

/// To a QEMU that listens at `socket`, for who has connected to it already.
std::unique_ptr<MachineControl> make_qemu_control(UniqueFd socket, std::chrono::milliseconds patience);
/// What lets a machine go on when it is written to its monitor, and is in the line of the answer.
inline constexpr char kGoOn[] = "{\"execute\":\"cont\",\"id\":\"keeper\"}\r\n", kGoOnMark[] = "\"keeper\"";
/// "7.2.22", as the program itself says.
std::string qemu_version(const std::filesystem::path& qemu);

/// How many drives such a machine has room for.
inline constexpr std::size_t kQemuDrives = 21;

/// qemu-system-x86_64 in PATH or /usr/bin; empty when there is none.
std::filesystem::path find_qemu();

/// How fast the counter of this host's processors runs. Takes some 20 ms.
std::uint64_t counter_khz();
/// What the kernel of an emulated processor must be told on its command line, since the machine has no clock to measure
/// that by.
std::string clock_words(std::uint64_t khz);

/// Whether KVM boots `kernel` here, or has been seen not to since this host has booted; else it is emulated. A /dev/kvm
/// that opens tells nothing: where it is nested in what does not nest, guests stand still.
/// `why`: of an emulation, what KVM lacks.
Accelerator choose_accelerator(const std::filesystem::path& qemu, const std::filesystem::path& kernel,
                               std::string* why = nullptr);

}  // namespace dsec::runners
