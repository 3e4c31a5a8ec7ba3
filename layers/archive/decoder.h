#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "layers/archive/decompress.h"

namespace dsec::layers {

/// One compression format behind its own library. libarchive offers the same formats behind one call, but 3.6 takes an
/// input that breaks off or is damaged within its first block for an empty one and does not verify the sums of gzip.
class Decoder {
 public:
  static std::unique_ptr<Decoder> make(Packing packing);
  virtual ~Decoder() = default;

  /// Takes from the front of `in` and writes up to `size` bytes to `out`; returns how many. `last` says that nothing
  /// comes after `in`. Throws Error (layer-damaged).
  virtual std::size_t step(std::string_view& in, char* out, std::size_t size, bool last) = 0;
  /// Whether the input may end where step() stopped reading: between members, frames or streams.
  virtual bool may_end() const = 0;
};

}  // namespace dsec::layers
