#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "layers/overlaybd/commit.h"

namespace dsec::layers::overlaybd {

/// What a new layer shall make its device show.
struct NewDevice {
  std::optional<std::filesystem::path> raw;  ///< an image; without one the layer has nothing
  std::vector<std::filesystem::path> below;  ///< what it comes on top of, as Stack::open takes it; sealed layers only
  std::optional<std::uint64_t> size;         ///< bytes; else that of the image, else that of what is below
  NewLayer layer;
};

/// Writes a sealed layer to an empty file. Throws Error (Usage) without an image.
Written create_sealed(const NewDevice& device, int fd, Progress& progress);

/// Makes the two files of a writable layer; neither may exist. Its packing does not count. Throws Error, and then makes
/// neither.
Written create_writable(const NewDevice& device, const std::filesystem::path& data, const std::filesystem::path& index,
                        Progress& progress);

}  // namespace dsec::layers::overlaybd
