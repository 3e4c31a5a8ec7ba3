#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "core/base/unique_fd.h"

namespace dsec {

/// A mount namespace that is bound to a file, and lives as long as that. Any number of processes find it there; the
/// kernel forgets it at a reboot. A process killed at any point leaves one that works, or none. The caller sees to it
/// that one at a time makes or removes it.
class NamespacePin {
 public:
  /// `file`: in a directory that may be seen by all who look for it.
  explicit NamespacePin(std::filesystem::path file) : file_(std::move(file)) {}

  struct Found {
    UniqueFd ns;
    ino_t inode;
    std::filesystem::path path;  ///< where it was found
  };
  std::optional<Found> find() const;
  /// `fill` arranges what is in it: called on a thread that has a new copy of the host's, from which nothing spreads.
  /// Throws Error.
  void make(const std::function<void()>& fill) const;
  /// Whoever uses the namespace keeps it. Throws Error.
  void remove() const;

 private:
  std::filesystem::path file_;
};

/// Takes all signals from the calling thread: they are for the threads that know what to do with them.
void block_signals();

}  // namespace dsec
