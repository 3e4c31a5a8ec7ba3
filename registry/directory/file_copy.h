#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/digest.h"

namespace dsec::registry {

/// A file of a known size and its digest in the making: bytes come in order, some of them from elsewhere than a file.
class ExactCopy {
 public:
  /// Writes to `to` from where it stands, or nowhere when that is -1. `advance` is told how many bytes are done.
  ExactCopy(int to, std::uint64_t size, std::function<void(std::uint64_t)> advance);
  /// Throws Error when they are more than there should be.
  void add(std::string_view bytes);
  /// Adds what `from` has from here to its end, in large sequential reads, and returns the digest of all. Throws Error
  /// when it is shorter or longer.
  Digest rest(int from);

 private:
  const int to_;
  const std::uint64_t size_;
  std::uint64_t done_ = 0;
  std::function<void(std::uint64_t)> advance_;
  Sha256 hash_;
};

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
