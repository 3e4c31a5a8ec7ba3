#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "layers/source.h"

namespace dsec::layers {

/// Whose the files of a layer made from a folder are.
enum class DirOwner {
  Auto,  ///< Keep for root, Root for anybody else, whose own id means nothing in a layer
  Keep,
  Root,
};

struct DirRequest {
  std::filesystem::path folder;
  DirOwner owner = DirOwner::Auto;
  std::optional<std::int64_t> mtime;  ///< seconds since 1970 that every entry gets

  /// "PATH[?owner=keep|root&mtime=SECONDS]", man/dsec-sources.7.md. Throws Error (Usage).
  /// A relative PATH begins at `base`; empty: the current directory.
  static DirRequest parse(std::string_view text, const std::filesystem::path& base = {});
};

/// A folder of this host: everything in it but what its .dsecignore names, and that file itself. Stays on the folder's
/// own file system. Throws Error when it is no folder.
std::unique_ptr<Source> open_dir_source(DirRequest request);

}  // namespace dsec::layers
