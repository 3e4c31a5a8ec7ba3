#pragma once

#include "layers/overlaybd/layer_header.h"
#include "layers/overlaybd/layer_output.h"
#include "layers/overlaybd/mapping.h"

namespace dsec::layers::overlaybd {

/// Where the contents of a device go, in order and without overlaps. Sectors count from 0.
class DeviceContents {
 public:
  virtual ~DeviceContents() = default;
  /// Whole sectors.
  virtual void data(std::uint64_t sector, std::string_view bytes) = 0;
  /// Zeros that hide what is below.
  virtual void zeros(std::uint64_t sector, std::uint64_t count) = 0;
};

/// Writes a sealed layer, as the project's overlaybd-commit does (man dsec-overlaybd): the same calls give the same
/// bytes.
class LayerWriter : public DeviceContents {
 public:
  /// Of `facts` only size, UUIDs and message count. Throws Error.
  LayerWriter(LayerOutput& output, LayerHeader facts);

  void data(std::uint64_t sector, std::string_view bytes) override { data(sector, bytes, 0); }
  void zeros(std::uint64_t sector, std::uint64_t count) override { zeros(sector, count, 0); }
  /// `layer`: which one of a stack they come from, as overlaybd-merge tells it.
  void data(std::uint64_t sector, std::string_view bytes, std::uint8_t layer);
  void zeros(std::uint64_t sector, std::uint64_t count, std::uint8_t layer);

  /// Writes mappings and trailer, and finishes the output. Returns the size of the file, bytes.
  std::uint64_t finish();
  std::size_t mappings() const noexcept { return mappings_.size(); }

 private:
  void add(const Mapping& mapping);

  LayerOutput& output_;
  LayerHeader facts_;
  std::uint64_t place_ = LayerHeader::kSize / kSector;  ///< of the next sector in the file
  std::vector<Mapping> mappings_;
};

}  // namespace dsec::layers::overlaybd
