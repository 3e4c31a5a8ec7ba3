#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace dsec::runners {

/// Project quotas of ext4 and xfs: a limit on the bytes of all files below some directories, kept by the filesystem.
/// By quotactl_fd(2), Linux 5.14.

/// Whether the filesystem of `path` enforces them (feature `project` and mount option prjquota).
bool enforces_project_quotas(const std::filesystem::path& path);

/// Puts the (empty) directory into the project, and what will be made in it. Throws Error.
void join_project(const std::filesystem::path& directory, std::uint32_t project);

struct ProjectUse {
  std::uint64_t bytes = 0, limit = 0;  ///< limit 0: none
};
/// `path` is any file of the filesystem. Throws Error.
ProjectUse project_use(const std::filesystem::path& path, std::uint32_t project);
/// 0 takes the limit away. Throws Error.
void limit_project(const std::filesystem::path& path, std::uint32_t project, std::uint64_t bytes);

}  // namespace dsec::runners
