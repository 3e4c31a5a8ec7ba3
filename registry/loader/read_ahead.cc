#include "registry/loader/read_ahead.h"

#include <algorithm>

namespace dsec::registry {

std::optional<std::pair<std::uint64_t, std::uint64_t>> ReadAhead::after(std::uint64_t first, std::uint64_t last,
                                                                        Read read) {
  ++clock_;
  for (Stream& stream : streams_) {
    // A chunk is read in several pieces, and the kernel's own read-ahead may mix up neighbours.
    if (stream.next == UINT64_MAX || first + 1 < stream.next || first > stream.next) continue;
    stream.used = clock_;
    if (last + 1 <= stream.next) return std::nullopt;
    stream.came += last + 1 - stream.next;
    stream.next = last + 1;
    if (stream.came < patience_ || (stream.window == 0 && read == Read::FoundAll)) return std::nullopt;
    // No more than it has come so far, which is all that tells how long a file is.
    const std::uint64_t window = std::min({std::max<std::uint64_t>(stream.window * 2, 1), most_, stream.came});
    const std::uint64_t from = std::max(stream.brought, last + 1), to = last + 1 + window;
    // Not chunk by chunk: what is asked for together costs one request.
    if (from >= to || (to - from) * 2 < window) return std::nullopt;
    stream.window = window;
    stream.brought = to;
    return std::pair(from, to - from);
  }
  Stream& oldest = *std::min_element(streams_.begin(), streams_.end(),
                                     [](const Stream& a, const Stream& b) { return a.used < b.used; });
  oldest = {last + 1, last + 1, last + 1 - first, 0, clock_};
  return std::nullopt;
}

}  // namespace dsec::registry
