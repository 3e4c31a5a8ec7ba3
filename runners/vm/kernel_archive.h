#pragma once

#include <filesystem>

namespace dsec::runners {

/// Unpacks the kernel and the modules of a Debian package or a tar archive, packed or not (boot/vmlinuz-*, lib/modules,
/// usr/lib/modules), into the directory `target`, and nothing else of it: no script is run. Throws Error when the file
/// is damaged or cut off, or has neither.
void unpack_kernel_archive(const std::filesystem::path& archive, const std::filesystem::path& target);

}  // namespace dsec::runners
