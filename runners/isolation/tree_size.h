#pragma once

#include <cstdint>

namespace dsec::runners {

/// Bytes on disk of all files below an open directory, hard links counted once. A tree that changes meanwhile is no
/// error. Never leaves the filesystem of the directory.
std::uint64_t tree_bytes(int directory);

}  // namespace dsec::runners
