#pragma once

#include <cstdint>

namespace dsec::engine {

/// Memory of a guest that a file is mapped to begins and ends at multiples of this: its kernel keeps structures of
/// pages for no less (SUBSECTION_SIZE on x86-64).
inline constexpr std::uint64_t kMappedUnit = 2ull << 20;

/// How long the file of a blob is then: behind its bytes is a hole.
constexpr std::uint64_t mapped_size(std::uint64_t blob) { return (blob + kMappedUnit - 1) / kMappedUnit * kMappedUnit; }

/// Whether a file of the store can be a blob of that size: it ends with it, or with the hole behind it.
constexpr bool fits_blob(std::uint64_t file, std::uint64_t blob) { return file == blob || file == mapped_size(blob); }

}  // namespace dsec::engine
