#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/model/sandbox_spec.h"

namespace dsec::engine {

/// A process that can be recognised later although pids are reused: another boot or start time means that it is dead.
struct ProcessIdentity {
  std::string boot_id;  ///< /proc/sys/kernel/random/boot_id
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  ///< field 22 of /proc/<pid>/stat
  static ProcessIdentity of(pid_t pid);
  static ProcessIdentity self();
  bool alive() const;
  bool operator==(const ProcessIdentity&) const = default;
};

/// The record written before the first resource of a sandbox exists, as sandboxes/<id>/lease.json: gc works from it.
struct Lease {
  Lease() = default;
  /// With the host name that the sandbox has when `wanted` names none.
  Lease(std::string id, ProcessIdentity creator, std::chrono::system_clock::time_point created, SandboxSpec wanted);

  std::string id;
  ProcessIdentity creator;  ///< the process that makes the sandbox
  std::chrono::system_clock::time_point created;
  SandboxSpec spec;  ///< its layers are what the lease holds in the store

  /// Not made durable: after a power cut there is nothing left that a lease stands for but the directory itself, and
  /// that is swept without one. (Syncing costs 0.6 ms of the 6 ms that a whole sandbox takes.)
  void write(const std::filesystem::path& directory) const;
  /// Takes the place of the one that is there.
  void replace(const std::filesystem::path& directory) const;
  /// Empty when there is none; throws Error when it is damaged.
  static std::optional<Lease> read(const std::filesystem::path& directory);
};

}  // namespace dsec::engine
