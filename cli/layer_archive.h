#pragma once

#include <filesystem>
#include <string>

namespace dsec::cli {

class Invocation;

/// Writes the layer `ref` of the store as a tar archive to the new file `path`.
void write_layer_archive(const std::string& ref, const std::filesystem::path& path, Invocation& call);

}  // namespace dsec::cli
