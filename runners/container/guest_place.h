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
///   empty/     hides directories; proc/ and root/ are mount points
class GuestPlace {
 public:
  explicit GuestPlace(std::filesystem::path run_directory) : run_(std::move(run_directory)) {}

  /// Makes what is missing. Throws Error.
  const std::filesystem::path& path();
  /// A mount namespace that holds the place as its root and a /proc, and nothing else, so that copying it for a sandbox
  /// costs next to nothing. The first caller's is its own, and ends with its keeper rather than on the way out of a
  /// process that starts one sandbox; later callers share one. Throws Error.
  std::shared_ptr<const UniqueFd> keeper_namespace();
  /// Begins to make it, while the caller does something else.
  void prepare() noexcept;

 private:
  void make();

  const std::filesystem::path run_;
  std::filesystem::path path_;
  std::mutex mutex_;
  std::future<UniqueFd> begun_;
  std::shared_ptr<const UniqueFd> kept_;
  bool again_ = false;
};

}  // namespace dsec::runners
