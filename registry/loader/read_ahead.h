#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace dsec::registry {

/// Finds readers that go through a blob in order, several at a time, and says what they will want next: nothing before
/// they have come some way, since most files are small and what lies behind them is another's; then the further, the
/// more. Numbers are chunks. Not thread-safe.
class ReadAhead {
 public:
  /// Bytes: how far a reader must have come, and how much is brought at most.
  static constexpr std::uint64_t kPatience = 256 << 10, kMost = 8 << 20;

  explicit ReadAhead(std::size_t chunk_size) : patience_(kPatience / chunk_size), most_(kMost / chunk_size) {}

  enum class Read { Waited, FoundAll };
  /// Of a read of [first, last]: what to bring, as first and count; nothing for a reader that has not had to wait yet.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> after(std::uint64_t first, std::uint64_t last, Read read);

 private:
  struct Stream {
    std::uint64_t next = UINT64_MAX;  ///< the chunk that a read in order has next, or is in now
    std::uint64_t brought = 0;        ///< the first chunk that was not told to be brought
    std::uint64_t came = 0;           ///< how far
    std::uint64_t window = 0;
    std::uint64_t used = 0;
  };
  const std::uint64_t patience_, most_;
  std::array<Stream, 8> streams_;
  std::uint64_t clock_ = 0;
};

}  // namespace dsec::registry
