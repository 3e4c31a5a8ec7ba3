#pragma once

#include <filesystem>

#include "core/base/files.h"

namespace dsec::layers::overlaybd {

/// Throws Error (Usage) when something has the name: other layers may stand on it.
void refuse_existing(const std::filesystem::path& path);
/// Like TempFile::publish, for a name that nothing has. Throws Error (Usage) when something has it by now.
void publish_new(TempFile& file, const std::filesystem::path& target);

}  // namespace dsec::layers::overlaybd
