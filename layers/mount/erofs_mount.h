#pragma once

#include <filesystem>
#include <optional>

#include "core/base/unique_fd.h"

namespace dsec::layers {

/// The blobs of one image on this host.
struct ErofsBlobs {
  std::filesystem::path meta;                 ///< metadata, or all of a compressed image
  std::optional<std::filesystem::path> data;  ///< file contents
};

enum class ErofsBacking { Detect, LoopDevice };

/// A detached mount of the image: read-only, nodev. Setuid files keep their meaning, for programs inside a sandbox.
/// From the files themselves where the kernel can (Linux 6.12, not on a stacked filesystem), else through loop devices.
/// Needs root; throws Error with what the kernel logged.
UniqueFd mount_erofs(const ErofsBlobs& blobs, ErofsBacking backing = ErofsBacking::Detect);

}  // namespace dsec::layers
