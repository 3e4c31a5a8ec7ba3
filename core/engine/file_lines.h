#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace dsec::engine {

/// Calls `take` for each line of a file from its beginning, without the newline, until it returns false. A last line
/// without one is left out, and so is everything from a line on that is longer than `longest`. Throws Error when the
/// file cannot be read.
void for_each_line(int fd, std::size_t longest, const std::function<bool(std::string_view line)>& take);

}  // namespace dsec::engine
