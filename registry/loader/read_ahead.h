#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

namespace dsec::registry {

/// Finds readers that go through a blob in order, several at a time, and says what they will want next: the further
/// they have come, the more. Numbers are chunks. Not thread-safe.
class ReadAhead {
 public:
  static constexpr std::uint64_t kFirst = 2, kMost = 32;

  /// Of a read of [first, last]: what to bring, as first and count; nothing when it follows no earlier one.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> after(std::uint64_t first, std::uint64_t last);

 private:
  struct Stream {
    std::uint64_t next = UINT64_MAX;  ///< the chunk that a read in order has next, or is in now
    std::uint64_t brought = 0;        ///< the first chunk that was not told to be brought
    std::uint64_t window = 0;
    std::uint64_t used = 0;
  };
  std::array<Stream, 8> streams_;
  std::uint64_t clock_ = 0;
};

}  // namespace dsec::registry
