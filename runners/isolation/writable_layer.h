#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "core/base/unique_fd.h"

namespace dsec::runners {

/// The writable layer of a sandbox: the directories `upper` and `work` that overlayfs wants. Without a limit they lie
/// in the sandbox's directory. With one they lie there too where its filesystem enforces project quotas (the project is
/// recorded in the file `project`), and else in an ext4 filesystem of that size, in the file `disk.img`. Inside, a full
/// layer answers ENOSPC, or EDQUOT where ext4 keeps the quota.
///
/// The kernel lets CAP_SYS_RESOURCE exceed quotas, and overlayfs writes with the credentials of whoever mounted it:
/// mount the overlay without that capability.

/// Throws Error (Failed) naming why a limit cannot be enforced below `sandboxes`, or (Usage) that it is too small.
void check_disk_limit(const std::filesystem::path& sandboxes, std::uint64_t limit);

enum class LayerUse {
  Run,   ///< writable, made when missing
  Look,  ///< read-only; the layer must exist
};
/// A detached mount that nobody has seen yet (so it can be id-mapped), whose root holds `upper` and `work`. The caller
/// must be in the mount namespace that shows `sandbox`. Any number may be open at once. Throws Error.
UniqueFd open_writable_layer(const std::filesystem::path& sandbox, std::optional<std::uint64_t> limit, LayerUse use);

/// Whether its limit is a quota, which limit_disk can change. Throws Error.
bool has_disk_quota(const std::filesystem::path& sandbox);
void limit_disk(const std::filesystem::path& sandbox, std::uint64_t limit);

/// Bytes that the writable layer takes.
std::uint64_t writable_layer_bytes(const std::filesystem::path& sandbox);

/// Takes away what lies outside the sandbox's directory (the quota of its project); call it before removing that. No
/// error when there is nothing.
void release_writable_layer(const std::filesystem::path& sandbox);

}  // namespace dsec::runners
