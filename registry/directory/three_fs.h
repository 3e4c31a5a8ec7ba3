#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::registry {

/// One line of /proc/self/mountinfo, as far as it matters here.
struct MountPoint {
  std::filesystem::path path;
  std::string type;  ///< "ext4", "fuse.hf3fs"
};

/// Escapes of the kernel (\040) are undone; lines that are none are skipped.
std::vector<MountPoint> parse_mountinfo(std::string_view text);
/// The mount that `path` (absolute, free of symlinks) lies on: of the longest mount points that contain it the last, as
/// that one hides the others. Null when the list has none.
const MountPoint* mount_of(const std::filesystem::path& path, const std::vector<MountPoint>& mounts);

/// What the clients of a 3FS cluster remember, and for how long it keeps what was removed (defaults of
/// src/fuse/FuseConfig.h and of its garbage collection, commit e2cef82).
inline constexpr std::chrono::seconds kThreeFsKnowsName{30}, kThreeFsKnowsNoName{5}, kThreeFsKeepsRemoved{300};

/// Whether `directory` lies on 3FS: its mount is of type fuse.hf3fs, and the ioctl that only the 3FS client answers
/// (0x80046802) gives the client's magic number.
bool is_three_fs(const std::filesystem::path& directory);

/// Throws Error telling what the path lies on instead.
void require_three_fs(const std::filesystem::path& directory);

}  // namespace dsec::registry
