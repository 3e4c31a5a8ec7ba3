#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::egress {

/// What it takes to serve each sandbox: its descriptors, by id.
using Kept = std::map<std::string, std::vector<UniqueFd>>;

/// The gateway is two processes: one serves, and the guard holds what it takes to serve and nothing else. When the one
/// that serves dies, the guard forks another; when the guard dies, the one that serves forks a new guard. So it takes
/// the death of both to close the network of sandboxes for longer than a moment.
class Guard {
 public:
  /// What a process that serves does; it exits with what this returns.
  using Serve = std::function<int(Guard& guard, Kept kept)>;

  /// Never returns: this process becomes the guard, and a child serves. `listener` stays open in both.
  [[noreturn]] static void run(int listener, const Serve& serve);

  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Readable when the guard is gone, and revive() is to be called.
  int descriptor() const { return socket_.get(); }
  /// A new guard, which knows nothing yet. Throws Error.
  void revive();

  /// Throw Error when there is no guard.
  void keep(const std::string& id, const std::vector<int>& descriptors);
  void drop(const std::string& id);
  /// Returns when the guard has ended, or is not there.
  void end();

 private:
  Guard(UniqueFd socket, int listener, const Serve& serve)
      : socket_(std::move(socket)), listener_(listener), serve_(serve) {}
  [[noreturn]] static void watch(UniqueFd socket, int listener, const Serve& serve);
  static UniqueFd fork_server(const Kept& kept, int listener, const Serve& serve);

  UniqueFd socket_;
  const int listener_;
  const Serve& serve_;
};

}  // namespace dsec::egress
