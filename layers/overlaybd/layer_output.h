#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "layers/overlaybd/zfile_header.h"

namespace dsec::layers::overlaybd {

/// How the file of a layer is wrapped.
struct Packing {
  std::optional<Compression> compression;
  std::uint32_t block_size = ZfileHeader::kLeastBlock;  ///< bytes; of a compressed one
  bool tar = false;

  /// "none", "zfile:lz4" or "zfile:zstd". Throws Error (Usage).
  static std::optional<Compression> parse_compression(std::string_view text);
};

/// Takes the bytes of a layer from its first to its last and writes them to a file, wrapped.
class LayerOutput {
 public:
  virtual ~LayerOutput() = default;
  /// Throws Error.
  virtual void write(std::string_view bytes) = 0;
  /// The file is complete when it returns, though perhaps not on the disk. Returns its size, bytes.
  virtual std::uint64_t finish() = 0;
};

/// Writes to an empty file that must outlive it. Throws Error (Usage) for a size of blocks that cannot be.
std::unique_ptr<LayerOutput> make_layer_output(int fd, const Packing& packing);

}  // namespace dsec::layers::overlaybd
