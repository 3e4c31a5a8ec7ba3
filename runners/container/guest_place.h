#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <mutex>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// The devices and links that every sandbox has, in an existing directory. Throws Error.
void fill_dev(const std::filesystem::path& dev);

/// What all sandboxes of a DSEC_HOME have in common on disk, below run/guest, and the mount namespace that keepers live
/// in. The files are made once, whole or not at all, and never change:
///   dev/       device nodes and links; each sandbox gets a read-only id-mapped view
///   sys/       directories that parts of the host's /sys are bound to
///   base/      the lowest layer of every sandbox: mount points and files that an image may lack
///   empty/     hides directories; proc/, root/ and files/ are mount points
class GuestPlace {
 public:
  explicit GuestPlace(std::filesystem::path run_directory) : run_(std::move(run_directory)) {}

  /// Makes what is missing. Throws Error.
  const std::filesystem::path& path();
  /// A mount namespace that holds the place as its root and a /proc, and nothing else, so that copying it for a sandbox
  /// costs next to nothing. It is bound to mntns in the place, for all processes that use this home, until release().
  /// Throws Error.
  std::shared_ptr<const UniqueFd> keeper_namespace();
  /// Begins to make it where it is missing, while the caller does something else.
  void prepare() noexcept;
  /// Gives the namespace up; whoever uses it keeps it. Throws Error.
  void release();

 private:
  void make();

  const std::filesystem::path run_;
  std::filesystem::path path_;
  std::mutex mutex_;
  std::future<UniqueFd> begun_;
  std::shared_ptr<const UniqueFd> kept_;
};

}  // namespace dsec::runners
