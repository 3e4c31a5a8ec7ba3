#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dsec::runners {

/// What a drive may do in a second; 0: as much as it can.
struct DriveRate {
  std::uint64_t bytes = 0, operations = 0;
  bool operator==(const DriveRate&) const = default;
};

/// A block device of a machine. The first is /dev/vda in the guest, and so on.
struct MachineDrive {
  std::string id;              ///< [a-z0-9]{1,20}: also its serial number, where the machine has such
  std::filesystem::path file;  ///< empty: a place for one, in a machine that goes on from a snapshot or is made for one
  std::filesystem::path nbd = {};  ///< instead of `file`: a unix socket at which it is served by NBD
  bool read_only = true;
  DriveRate rate = {};
};

/// A file as persistent memory of a guest, which reads the pages that the host has cached of it. The first is
/// /dev/pmem0. Its size is a multiple of kPmemAlignment.
struct MachinePmem {
  std::string id;
  std::filesystem::path file;
  std::uint64_t size = 0;  ///< bytes
};
inline constexpr std::uint64_t kPmemAlignment = 2ull << 20;
/// Bytes of addresses for all of them, in a machine that has room for any.
inline constexpr std::uint64_t kPmemRoom = 256ull << 30;
/// Images in such memory, each in two files.
inline constexpr std::size_t kMostMapped = 24;

/// A machine as a VMM is to make it. All paths are as the VMM sees them.
struct MachineSpec {
  std::filesystem::path kernel, initramfs;
  std::string command_line;
  unsigned cpus = 1;
  std::uint64_t memory = 512ull << 20;  ///< bytes, a multiple of 1 MiB
  std::vector<MachineDrive> drives;
  std::vector<MachinePmem> pmem;
  bool has_pmem_room = false;  ///< for `pmem`: also of a machine that is saved before it has any
  bool restores = false;       ///< it goes on from a snapshot: MachineControl::load(), then resume()
  /// What the VMM opens for what its memory is at first, which it does not change; empty: nothing.
  std::filesystem::path saved_memory;
  bool reports_free_pages = true;  ///< what the guest does not use goes back to the host
  /// The host's end of the byte channel: a unix socket that the VMM listens at.
  std::filesystem::path channel;
  std::filesystem::path control;  ///< the socket that MachineControl talks to
  std::filesystem::path console;  ///< what the guest's console says; empty: nobody hears it
};

/// What the guest has told of its memory, in bytes; each is absent until it did.
struct GuestMemory {
  std::uint64_t balloon = 0;  ///< what the guest has given to the balloon
  std::optional<std::uint64_t> total, available, free, caches;
};

}  // namespace dsec::runners
