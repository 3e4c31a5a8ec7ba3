#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace dsec::runners {

/// Up to `most` bytes; 0 at the end.
using ReadSome = std::function<std::size_t(char* into, std::size_t most)>;

/// Takes apart what QEMU saves of a machine that stands still (its migration stream, version 3, as QEMU's
/// docs/devel/migration.rst and scripts/analyze-migration.py describe it): the pages of the memory that it calls
/// `memory`, of `size` bytes, go to the empty file `pages`, each to its place, with holes where it is zero; all the
/// rest goes to `state` as it came, which QEMU reads as a machine whose memory is there already. What comes may be
/// anything: throws Error for what is no such stream, for pages beyond the memory, and for more than kMostState bytes
/// beside it.
void split_qemu_stream(const ReadSome& read, std::string_view memory, std::uint64_t size, int pages, int state);

/// Devices, processors and the memory of their programs take some hundred KiB.
inline constexpr std::uint64_t kMostState = 64ull << 20;

}  // namespace dsec::runners
