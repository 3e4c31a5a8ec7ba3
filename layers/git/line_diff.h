#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsec::layers {

/// What makes one text the other, by lines.
struct LineDiff {
  std::string hunks;  ///< "@@ … @@" and the lines, with three around each change; empty when the texts are the same
  std::size_t added = 0, deleted = 0;
};

/// Lines end with '\n'; where the last has none, the hunk says so as diff(1) does. Throws Error.
LineDiff diff_lines(std::string_view before, std::string_view after);

}  // namespace dsec::layers
