#pragma once

#include <filesystem>
#include <memory>
#include <mutex>

#include "runners/container/channel.h"
#include "runners/isolation/cgroups.h"

namespace dsec::runners {

struct LaunchChildren;

/// A keeper on its way: executes `program` (load_guest_program) as nobody's child in the v2 cgroup `cgroup`, with
/// nothing of ours but the other end of a connection. The calling process, however large, is not copied, and does not
/// wait.
class KeeperLaunch {
 public:
  /// Throws Error.
  KeeperLaunch(int program, const std::filesystem::path& directory, int cgroup);
  KeeperLaunch(const KeeperLaunch&) = delete;
  /// Without finish(): hangs up, on which the keeper ends itself and what it has made, and waits for that.
  ~KeeperLaunch();

  /// May be used at once.
  Channel& channel() noexcept { return channel_; }
  /// Waits until the keeper executes; throws Error saying why it does not.
  void await_execution();
  /// The sandbox is the keeper's now.
  void finish();
  /// Whether it has said something, or ended: nothing that a keeper does before it is spoken to.
  bool broken() const noexcept;

 private:
  std::unique_ptr<LaunchChildren> children_;  ///< until await_execution()
  Channel channel_{UniqueFd()};
  bool finished_ = false;
};

/// Launches keepers. One is on its way already when a sandbox is about to be made. A process that has made a sandbox
/// and makes another will make more: from then on it has one keeper waiting, started while PID 1 of the last was on its
/// way. Thread-safe.
class KeeperSupply {
 public:
  /// The keeper for the sandbox in `directory`, in the group of keepers. Throws Error.
  std::unique_ptr<KeeperLaunch> take(const CgroupHost& cgroups, int program, const std::filesystem::path& directory);
  /// For a sandbox that is about to be made, whose directory will lie beside `directory` and have a name as long.
  void prepare(const CgroupHost& cgroups, int program, const std::filesystem::path& directory) noexcept;
  /// The same for the one after that in `directory`.
  void refill(const CgroupHost& cgroups, int program, const std::filesystem::path& directory) noexcept;
  /// Ends the one that waits.
  void clear();

 private:
  std::mutex mutex_;
  bool again_ = false;  ///< refill() was called before
  std::unique_ptr<KeeperLaunch> waiting_;
};

}  // namespace dsec::runners
