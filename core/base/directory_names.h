#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dsec {

/// Names in an open directory, sorted, without "." and ".."; whatever was read of it before. Throws Error naming it as
/// `shown` when it cannot be read to its end: what came until then would pass for all there is.
std::vector<std::string> directory_names(int directory, const std::string& shown);
/// The same; none when there is no such directory.
std::vector<std::string> directory_names(const std::filesystem::path& directory);

}  // namespace dsec
