#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"

namespace dsec::layers::overlaybd {

struct LayerProblem {
  std::string file;  ///< as it was given
  std::string what;
};

struct CheckResult {
  std::size_t layers = 0;
  std::uint64_t bytes = 0;     ///< read and, where there are checksums, verified
  std::size_t unverified = 0;  ///< layers whose data have no checksums
  std::vector<LayerProblem> problems;
};

/// Reads all of the layers of a stack (files as Stack::open takes them) and compares them with what they tell of
/// themselves: checksums, mappings, sizes, and whose parent each names. A file that cannot be opened or read at all is
/// an Error; one that is damaged is a problem.
CheckResult check(std::span<const std::filesystem::path> files, Progress& progress);

}  // namespace dsec::layers::overlaybd
