#pragma once

#include <cstdint>

namespace dsec::runners {

/// Names of the trees in such a stream.
inline constexpr char kWrittenUpper[] = "upper", kWrittenLower[] = "lower";

enum class Below { Left, Included };

/// Writes the writable layer `upper` (in overlayfs form) as a tar stream to `fd`, for a host that does not see what
/// lies below it: the tree kWrittenUpper has deletions (devices 0:0) and opaque directories only where they hide
/// something of `lower`. With Below::Included, the tree kWrittenLower has what `lower` shows where something has
/// changed. Needs root, and that nobody changes either meanwhile. Throws Error.
void write_written(int upper, int lower, Below below, int fd);

/// Unpacks such a stream into the empty directory `into`, taking at most `most` bytes of it, an entry counting as 512
/// at least. Needs root. The stream may want to harm: nothing is written outside of `into`, and of devices only
/// deletions are made. Throws Error; what was unpacked before stays.
void unpack_written(int into, int fd, std::uint64_t most);

}  // namespace dsec::runners
