#pragma once

#include <filesystem>
#include <memory>

#include "runners/container/channel.h"

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

 private:
  std::unique_ptr<LaunchChildren> children_;  ///< until await_execution()
  Channel channel_{UniqueFd()};
  bool finished_ = false;
};

}  // namespace dsec::runners
