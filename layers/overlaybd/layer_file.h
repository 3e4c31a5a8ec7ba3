#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "layers/overlaybd/layer_header.h"
#include "layers/overlaybd/random_bytes.h"
#include "layers/overlaybd/zfile_reader.h"

namespace dsec::layers::overlaybd {

/// A file out of its wrappers.
struct LayerFile {
  std::unique_ptr<RandomBytes> bytes;  ///< of the layer itself
  std::uint64_t stored = 0;            ///< bytes of the file on disk
  bool in_tar = false;
  std::optional<ZfileFacts> zfile;
};

/// Takes tar archive and ZFile off, if they are there. Throws Error.
LayerFile open_layer_file(UniqueFd file, std::string name);
LayerFile open_layer_file(const std::filesystem::path& path);

/// Its first 4096 bytes; throws Error when it begins as no layer does.
LayerHeader read_layer_header(const RandomBytes& bytes);
/// Its last 4096 bytes; nothing when they are no trailer of a sealed layer.
std::optional<LayerHeader> read_layer_trailer(const RandomBytes& bytes);
/// Throws Error for a size of a device that cannot be.
void check_device_size(const RandomBytes& bytes, std::uint64_t size);

}  // namespace dsec::layers::overlaybd
