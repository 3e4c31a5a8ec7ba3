#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/engine/engine.h"
#include "core/engine/home.h"

namespace dsec::engine {

/// A sandbox as it was at one moment, with all that ran in it. Of this host, and of machines like its own.
struct MemorySnapshot {
  std::string name;
  std::string sandbox;          ///< id of that which was saved
  SandboxSpec spec;             ///< of it
  std::uint64_t made = 0;       ///< seconds since the epoch
  std::uint64_t bytes = 0;      ///< that it takes on the disk
  std::filesystem::path place;  ///< where its files lie
};

/// The label of a sandbox that names the one whose memory it went on from: what is in it did not come from its layers.
inline constexpr const char* kMemoryOfLabel = "dsec.memory-of";

/// An engine whose sandboxes can be saved with all that runs in them. Sandboxes that go on have the settings of the one
/// that was saved, and are each one of its own; on failure none is left. What a backend cannot do throws Error (Usage).
class MemoryBranching {
 public:
  virtual ~MemoryBranching() = default;
  /// Under a name that is not taken. The sandbox stands still meanwhile, and goes on.
  virtual MemorySnapshot save(const std::string& id, const std::string& name, const OperationContext& context = {}) = 0;
  /// `request.operation` means nothing here: no sandbox is asked.
  virtual std::vector<SandboxInfo> restore(const std::string& snapshot, const ForkRequest& request) = 0;
  /// As Engine::fork, with all that runs.
  virtual std::vector<SandboxInfo> fork_memory(const std::string& id, const ForkRequest& request) = 0;
};

/// The memory snapshots of a home, in vm/saved/NAME: `snapshot.json`, which says of what sandbox it is, and what a
/// MemorySaver has put there. A directory appears as a whole, and what lies in it never changes; what went on from it
/// may be there without it. Layers that one needs are kept (leased_layers()).
class MemorySnapshots {
 public:
  explicit MemorySnapshots(const Home& home) : place_(home.root() / "vm" / "saved") {}

  /// One that is being made; destroyed without keep() it is gone. After a kill gc removes it.
  class Draft {
   public:
    /// Says already what it is of, so that the layers stay.
    Draft(const MemorySnapshots& snapshots, MemorySnapshot snapshot);
    const std::filesystem::path& place() const noexcept { return files_.path(); }
    const MemorySnapshot& snapshot() const noexcept { return snapshot_; }
    /// Under its name; throws Error (Usage) when that is taken.
    MemorySnapshot keep();

   private:
    const std::filesystem::path all_;
    MemorySnapshot snapshot_;
    TempDirectory files_;
  };

  /// Throws Error (Usage) when it cannot be the name of a new one.
  void check_name(const std::string& name) const;
  /// Throws Error (Usage) with near names.
  MemorySnapshot find(const std::string& name) const;
  /// By name. What cannot be read is told in `problems`.
  std::vector<MemorySnapshot> list(std::vector<std::string>& problems) const;
  /// False when there is none of that name.
  bool remove(const std::string& name) const;
  /// Of all, also those that are being made.
  std::vector<Digest> layers() const;

 private:
  std::filesystem::path place_;
};

}  // namespace dsec::engine
