#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/base/files.h"

namespace dsec::runners {

/// Where a kernel and its modules lie.
struct KernelFiles {
  std::filesystem::path image;    ///< vmlinuz
  std::filesystem::path modules;  ///< lib/modules/RELEASE
  std::string release;
  std::unique_ptr<TempDirectory> unpacked;  ///< that they lie in, when they came of an archive
};

/// Looks at a package, tar archive or directory; an archive is unpacked below `scratch`. Throws Error saying what is
/// missing, or that there is more than one.
KernelFiles find_kernel_files(const std::filesystem::path& source, const std::filesystem::path& scratch);

}  // namespace dsec::runners
