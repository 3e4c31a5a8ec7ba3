#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/engine/remote_image.h"
#include "layers/source.h"

namespace dsec::layers {

struct OpenSourceOptions {
  /// Where relative paths begin; empty: the current directory.
  std::filesystem::path directory;
  /// For unlinked files that an input is kept in when it can be read only once (standard input, packed image archives).
  std::filesystem::path spool;
  /// Images of registries; empty: `docker:` is refused.
  engine::OpenRemoteImage images = {};
};

/// The source that a person names: "tar:FILE", "oci-layout:DIR[:REF]", … as dsec-import(1) lists them. Throws Error
/// (Usage) that names the schemes when `text` is none.
std::unique_ptr<Source> open_source(std::string_view text, const OpenSourceOptions& options);

}  // namespace dsec::layers
