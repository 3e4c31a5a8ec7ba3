#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "layers/archive/byte_stream.h"
#include "layers/archive/tar_reader.h"

namespace dsec::layers {

/// Hands out contents of an archive that TarReader went through before: directly where the archive is not packed, else
/// by unpacking again, which is fast as long as contents are wanted in the order of the archive.
class ContentReader {
 public:
  explicit ContentReader(FileSpan archive);
  ~ContentReader();
  /// Gives `sink` the `size` bytes of a file; throws Error.
  void copy(std::span<const Segment> segments, std::uint64_t size, TreeSink& sink);

 private:
  struct Unpacking;
  void copy_piece(const Segment& segment, TreeSink& sink);

  FileSpan archive_;
  bool packed_ = false;
  std::unique_ptr<char[]> buffer_;
  std::unique_ptr<Unpacking> unpacking_;
};

}  // namespace dsec::layers
