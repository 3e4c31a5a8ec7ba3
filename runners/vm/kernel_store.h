#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dsec::runners {

/// A kernel that guests can be started with; see dsec-vm(1).
struct GuestKernel {
  std::string name;                  ///< as it is called here
  std::string release;               ///< as it calls itself
  std::filesystem::path kernel;      ///< a bzImage, for QEMU
  std::filesystem::path vmlinux;     ///< the same uncompressed, for Firecracker; empty when it cannot be had
  std::filesystem::path initramfs;   ///< with the programs of this dsec
  std::string source;                ///< what it was imported from
  std::uint64_t imported = 0;        ///< seconds since the epoch
  std::vector<std::string> modules;  ///< that a guest always loads, in order
  bool carries_egress = false;       ///< its sandboxes can be held to a network policy
};

/// Takes a kernel into `home` under `name` (empty: its release), in the place of one of that name. `source` is a Debian
/// package, a tar archive, or a directory that has boot/vmlinuz-* (or vmlinuz) and lib/modules or usr/lib/modules, or
/// just one kernel package. Throws Error; then nothing has changed.
GuestKernel import_kernel(const std::filesystem::path& home, const std::filesystem::path& source,
                          std::string name = {});

/// By name.
std::vector<GuestKernel> list_kernels(const std::filesystem::path& home);

/// The kernel of that name, or without one that which was imported last; its initramfs has the programs of this dsec
/// when this returns. Empty when there is none.
std::optional<GuestKernel> find_guest_kernel(const std::filesystem::path& home, const std::string& name = {});

/// False when there is none of that name. Guests that run do not need it any more.
bool remove_kernel(const std::filesystem::path& home, const std::string& name);

}  // namespace dsec::runners
