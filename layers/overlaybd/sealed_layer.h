#pragma once

#include <vector>

#include "layers/overlaybd/layer_file.h"
#include "layers/overlaybd/mapping.h"

namespace dsec::layers::overlaybd {

/// A layer that does not change any more. Several threads may read from it at once.
class SealedLayer {
 public:
  /// Reads and checks header, trailer and all mappings; throws Error for what man dsec-overlaybd refuses. Needs 16
  /// bytes of memory for each mapping, and 4 for each block of a compressed one.
  explicit SealedLayer(LayerFile file);

  /// The trailer, which counts.
  const LayerHeader& facts() const noexcept { return facts_; }
  const LayerFile& file() const noexcept { return file_; }
  /// In the order of the device.
  const std::vector<Mapping>& mappings() const noexcept { return mappings_; }
  /// From a byte of the layer's file, as mappings tell it.
  void read(std::uint64_t offset, char* buffer, std::size_t size) const { file_.bytes->read(offset, buffer, size); }

 private:
  LayerFile file_;
  LayerHeader facts_;
  std::vector<Mapping> mappings_;
};

}  // namespace dsec::layers::overlaybd
