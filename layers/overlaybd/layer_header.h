#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsec::layers::overlaybd {

/// Header or trailer of a layer (man dsec-overlaybd; lsmt/file.cpp, HeaderTrailer).
struct LayerHeader {
  static constexpr std::size_t kSize = 4096;  ///< bytes in a file
  static constexpr std::size_t kMaxMessage = 256;

  bool is_header = true, is_data = true, is_sealed = false, is_sparse = false;
  std::uint64_t index_offset = 0;  ///< bytes
  std::uint64_t index_count = 0;   ///< mappings
  std::uint64_t size = 0;          ///< of the device, bytes; 0: the layer below tells it
  std::string uuid, parent;        ///< as in uuid.h
  std::string message;             ///< bytes, without the zeros behind them

  /// From its kSize bytes; nothing when they do not begin as one does.
  static std::optional<LayerHeader> parse(std::string_view bytes);
  /// Its kSize bytes. Throws Error (Usage) for a message that does not fit.
  std::string bytes() const;
};

}  // namespace dsec::layers::overlaybd
