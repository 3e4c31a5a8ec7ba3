#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/base/digest.h"

namespace dsec::registry {

/// Copies exactly `size` bytes from the start of one file to another, in large sequential writes, and returns their
/// digest. Throws Error when the source is shorter or longer. `advance` is told how many bytes are done.
Digest copy_exactly(int from, int to, std::uint64_t size, const std::function<void(std::uint64_t)>& advance);

/// Hashes exactly `size` bytes of an open file like copy_exactly, without writing.
Digest hash_exactly(int from, std::uint64_t size, const std::function<void(std::uint64_t)>& advance = {});

/// Fills `bytes` with what the file has at `offset`. Throws Error when it ends before.
void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> bytes);

/// Reads a file that was just written back from where it is stored: past the page cache where the filesystem lets us
/// (O_DIRECT), else with the cached pages dropped. Throws Error when it has not `size` bytes.
Digest read_back(int directory, const std::string& name, std::uint64_t size);

}  // namespace dsec::registry
