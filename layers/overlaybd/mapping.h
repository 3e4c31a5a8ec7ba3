#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::layers::overlaybd {

/// Bytes of a sector, the unit of mappings (lsmt/file.h, ALIGNMENT).
inline constexpr std::uint64_t kSector = 512;

/// Where sectors of the device are, in 16 bytes as in the file (man dsec-overlaybd; lsmt/index.h, SegmentMapping).
/// Offsets and lengths are sectors.
class Mapping {
 public:
  static constexpr std::uint64_t kMaxOffset = (1ull << 50) - 1;  ///< of one that only fills up
  static constexpr std::uint32_t kMaxLength = (1u << 14) - 1;
  static constexpr std::uint64_t kMaxPlace = (1ull << 55) - 1;
  static constexpr std::size_t kSize = 16;  ///< bytes in a file

  Mapping() = default;
  /// All within the limits above.
  Mapping(std::uint64_t offset, std::uint32_t length, std::uint64_t place, bool zero = false, std::uint8_t layer = 0)
      : low_(offset | static_cast<std::uint64_t>(length) << 50),
        high_(place | static_cast<std::uint64_t>(zero) << 55 | static_cast<std::uint64_t>(layer) << 56) {}
  static Mapping filler() { return {kMaxOffset, 0, 0}; }
  /// From the 16 bytes at `bytes`.
  static Mapping parse(const char* bytes);
  void append_to(std::string& bytes) const;

  std::uint64_t offset() const noexcept { return low_ & kMaxOffset; }
  std::uint32_t length() const noexcept { return static_cast<std::uint32_t>(low_ >> 50); }
  std::uint64_t end() const noexcept { return offset() + length(); }
  /// Of the file; of zeros nothing.
  std::uint64_t place() const noexcept { return high_ & kMaxPlace; }
  std::uint64_t place_end() const noexcept { return zero() ? place() : place() + length(); }
  bool zero() const noexcept { return (high_ >> 55 & 1) != 0; }
  /// Which layer of a stack, as its owner counts them.
  std::uint8_t layer() const noexcept { return static_cast<std::uint8_t>(high_ >> 56); }
  bool is_filler() const noexcept { return offset() == kMaxOffset; }

  Mapping in_layer(std::uint8_t layer) const { return {offset(), length(), place(), zero(), layer}; }
  /// The part of it in [from, to), which must not be empty.
  Mapping part(std::uint64_t from, std::uint64_t to) const;
  /// What joins it and the one behind it, where both file and device go on without a gap and the sum is short enough
  /// (lsmt/index.cpp, compress_raw_index). False: it cannot be.
  bool join(const Mapping& next);

  bool operator==(const Mapping&) const = default;

 private:
  std::uint64_t low_ = 0, high_ = 0;
};

/// What is wrong with mappings that ought to be in order, with places in [first, last): empty when nothing is.
/// (lsmt/index.cpp, verify_mapping_order and verify_mapping_moffset.)
std::string fault_of(const std::vector<Mapping>& mappings, std::uint64_t first, std::uint64_t last);
/// The same of the place of one.
bool lies_within(const Mapping& mapping, std::uint64_t first, std::uint64_t last);

/// What an upper and a lower layer show together: both in order without overlaps, and so is the result.
std::vector<Mapping> lay_over(const std::vector<Mapping>& upper, const std::vector<Mapping>& lower);
/// The same for any number, bottom first; throws Error when the result has more than 128,000,000 mappings.
std::vector<Mapping> merge(std::vector<std::vector<Mapping>> layers);

}  // namespace dsec::layers::overlaybd
