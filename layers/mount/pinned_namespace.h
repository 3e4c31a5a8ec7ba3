#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/namespace_pin.h"
#include "core/base/unique_fd.h"

namespace dsec::layers {

/// The mount namespace that holds this home's mounted images, so that neither the host's mount table nor those of
/// sandboxes grow with them. It holds nothing but a tmpfs with one directory per image, and lives as long as it is
/// bound to run/mntns. Any number of processes use it; the kernel forgets it at a reboot, and the next user makes it
/// anew. A process killed at any point leaves a namespace that works. Thread-safe.
class PinnedNamespace {
 public:
  /// `run`: DSEC_HOME/run.
  explicit PinnedNamespace(std::filesystem::path run);
  ~PinnedNamespace();
  PinnedNamespace(const PinnedNamespace&) = delete;
  PinnedNamespace& operator=(const PinnedNamespace&) = delete;

  /// Detached copies of the images mounted under `names`; an invalid descriptor for each that is not mounted. Makes
  /// the namespace when there is none.
  std::vector<UniqueFd> clone(std::span<const std::string> names);
  /// Mounts what `mount` returns under `name` unless it is mounted meanwhile, and returns a copy. One process at a time
  /// does this for a name.
  UniqueFd place(const std::string& name, const std::function<UniqueFd()>& mount);
  /// Names of all images mounted; empty when there is no namespace.
  std::vector<std::string> names();
  /// Unmounts the image; false when it was not mounted, or is being mounted right now. Copies of it stay usable.
  bool remove(const std::string& name);
  /// Gives the namespace up when nothing is mounted in it; the host then shows no trace of it.
  void unpin_if_empty();

 private:
  class Thread;
  /// Null when there is no namespace.
  std::shared_ptr<Thread> join_existing();
  std::shared_ptr<Thread> join_or_create();

  const std::filesystem::path run_;
  const NamespacePin pin_;
  std::mutex mutex_;  ///< of thread_
  std::shared_ptr<Thread> thread_;
};

}  // namespace dsec::layers
