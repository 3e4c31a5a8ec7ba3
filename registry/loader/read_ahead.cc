#include "registry/loader/read_ahead.h"

#include <algorithm>

namespace dsec::registry {

std::optional<std::pair<std::uint64_t, std::uint64_t>> ReadAhead::after(std::uint64_t first, std::uint64_t last) {
  ++clock_;
  for (Stream& stream : streams_) {
    // A chunk is read in several pieces, and the kernel's own read-ahead may mix up neighbours.
    if (stream.next == UINT64_MAX || first + 1 < stream.next || first > stream.next) continue;
    stream.used = clock_;
    if (last + 1 <= stream.next) return std::nullopt;
    stream.next = last + 1;
    stream.window = std::min(std::max(stream.window * 2, kFirst), kMost);
    const std::uint64_t from = std::max(stream.brought, last + 1), to = last + 1 + stream.window;
    // Not chunk by chunk: what is asked for together costs one request.
    if (from >= to || (to - from) * 2 < stream.window) return std::nullopt;
    stream.brought = to;
    return std::pair(from, to - from);
  }
  Stream& oldest = *std::min_element(streams_.begin(), streams_.end(),
                                     [](const Stream& a, const Stream& b) { return a.used < b.used; });
  oldest = {last + 1, last + 1, 0, clock_};
  return std::nullopt;
}

}  // namespace dsec::registry
