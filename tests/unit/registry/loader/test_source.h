#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "registry/loader/chunk_source.h"
#include "tests/unit/registry/fixture.h"

namespace dsec::registry::test {

/// The chunks blob of these bytes.
inline std::string digests_of(const std::string& data) {
  std::string raw;
  for (std::size_t at = 0; at < data.size(); at += kChunkSize)
    raw += raw_digest(Digest::of(data.substr(at, kChunkSize)));
  return raw;
}

/// A registry in memory that can stall, fail and lie.
class TestSource : public ChunkSource {
 public:
  explicit TestSource(std::string data) : data_(std::move(data)) {}

  void read(const BlobOrigin& origin, const RemoteBlob&, std::uint64_t offset, std::span<std::byte> bytes) override {
    std::unique_lock lock(mutex_);
    ++requests;
    bytes_read += bytes.size();
    order.push_back(offset / kChunkSize);
    ++reads_of_chunk[offset / kChunkSize];
    for (std::uint64_t more = offset / kChunkSize + 1; more * kChunkSize < offset + bytes.size(); ++more)
      ++reads_of_chunk[more];
    going_.wait(lock, [&] {
      return !stalled_ && offset / kChunkSize != stalled_chunk_ && origin.registry != stalled_registry_;
    });
    if (origin.registry == dead) throw failure("it is away");
    std::memcpy(bytes.data(), data_.data() + offset, bytes.size());
    const std::uint64_t wrong = wrong_byte;
    if (origin.registry == liar && wrong >= offset && wrong < offset + bytes.size())
      bytes[wrong - offset] ^= std::byte{1};
  }

  std::vector<BlobOrigin> origins(const RemoteBlob& blob) override {
    return found_since.empty() ? blob.origins : found_since;
  }

  void stall(bool now) {
    {
      const std::lock_guard lock(mutex_);
      stalled_ = now;
    }
    going_.notify_all();
  }

  /// Requests that begin with this chunk; empty: none.
  void stall_chunk(std::optional<std::uint64_t> chunk) {
    {
      const std::lock_guard lock(mutex_);
      stalled_chunk_ = chunk;
    }
    going_.notify_all();
  }
  /// Requests to this one; empty: none.
  void stall_registry(const std::string& registry) {
    {
      const std::lock_guard lock(mutex_);
      stalled_registry_ = registry;
    }
    going_.notify_all();
  }

  std::atomic<std::uint64_t> requests{0}, bytes_read{0};
  std::map<std::uint64_t, int> reads_of_chunk;
  std::vector<std::uint64_t> order;  ///< the first chunk of each request
  std::string dead, liar;
  std::vector<BlobOrigin> found_since;  ///< those that are known by now; empty: no others
  std::uint64_t wrong_byte = 0;

 private:
  const std::string data_;
  std::mutex mutex_;
  std::condition_variable going_;
  bool stalled_ = false;
  std::optional<std::uint64_t> stalled_chunk_;
  std::string stalled_registry_;
};

}  // namespace dsec::registry::test
