#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsec::test {

/// One fault per include line of `text` that the file `path` (from the root of the tree) may not have, each as
/// "path:line: why".
std::vector<std::string> include_faults(const std::string& path, std::string_view text);

}  // namespace dsec::test
