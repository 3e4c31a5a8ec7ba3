#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"

namespace dsec {

/// Where in other blobs the bytes of a data blob lie: how a layer is kept beside the image that it was made of without
/// a copy of the contents. man/dsec-oci.5.md has the form in which it is published. Whoever wrote it, following it
/// makes other bytes at worst, which the digests of chunks tell.
struct DataIndex {
  /// A blob that has some of the bytes.
  struct Part {
    Digest blob;
    std::uint64_t size;
    bool operator==(const Part&) const = default;
  };
  /// Bytes of the data that follow each other in a part, too.
  struct Run {
    std::uint64_t at, length;
    std::uint32_t part;
    std::uint64_t offset;  ///< in the part
    bool operator==(const Run&) const = default;
  };
  Digest data;
  std::uint64_t size;  ///< of the data
  std::vector<Part> parts;
  std::vector<Run> runs;  ///< ascending and apart; what none covers is zeros

  std::string bytes() const;
  /// Throws Error unless it is an index in every detail: runs within the data and their parts, none upon another.
  static DataIndex parse(std::string_view bytes, const std::string& origin);
  bool operator==(const DataIndex&) const = default;
};

/// A larger one is neither written nor read.
inline constexpr std::uint64_t kLargestDataIndex = 16 << 20;

/// One request to a part, and where what it brings belongs.
struct PartRead {
  struct Piece {
    std::uint64_t from;  ///< in what is read
    std::uint64_t to;    ///< from the first byte that was asked for
    std::uint64_t length;
  };
  std::uint32_t part;
  std::uint64_t offset, length;
  std::vector<Piece> pieces;
};

/// What to read for `size` bytes of the data from `at` on, which lie within it. Neighbours in a part come together,
/// with what little lies between them.
std::vector<PartRead> reads_of(const DataIndex& index, std::uint64_t at, std::uint64_t size);

}  // namespace dsec
