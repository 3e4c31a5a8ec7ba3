#pragma once

#include <cstdint>
#include <string_view>

namespace dsec::layers {

/// A block device as its user sees it. Ranges are bytes, whole sectors of 512 where anything is changed, and lie within
/// size(). All throw Error; what a failed call left is unknown in its range alone.
class BlockTarget {
 public:
  virtual ~BlockTarget() = default;

  virtual std::uint64_t size() const = 0;
  virtual void read(std::uint64_t offset, char* buffer, std::size_t size) = 0;
  virtual void write(std::uint64_t offset, std::string_view bytes) = 0;
  /// Makes it zero and gives the room back.
  virtual void clear(std::uint64_t offset, std::uint64_t size) = 0;
  /// All that was changed before is on the host's disk when it returns.
  virtual void flush() = 0;
};

}  // namespace dsec::layers
