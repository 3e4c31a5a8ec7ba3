#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace dsec::layers {

/// Bytes in order.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// The next piece, empty at the end; valid until the next call. Throws Error.
  virtual std::string_view next() = 0;
  /// Leaves out up to `size` bytes without reading them; returns how many, which is 0 where all must be read.
  virtual std::uint64_t skip(std::uint64_t size) {
    (void)size;
    return 0;
  }
};

/// How much of a file is there that somebody else is still writing from its start.
class Arrival {
 public:
  /// So many bytes are there by now.
  void advance(std::uint64_t bytes);
  /// There will be no more.
  void fail(Error error);
  /// Waits for the byte at `position` and returns how many bytes are there. Throws the Error that it failed with.
  std::uint64_t wait_for(std::uint64_t position);

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::uint64_t bytes_ = 0;
  std::optional<Error> error_;
};

/// A stretch of an open regular file; copies share the descriptor.
struct FileSpan {
  std::shared_ptr<const UniqueFd> file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;                 ///< that it has, or is going to have
  std::shared_ptr<Arrival> arrival = {};  ///< of a file that is not whole yet: who reads it in order may begin

  /// The whole of a file; throws Error when it is no regular file (a FIFO or a device would block or never end).
  static FileSpan open(const std::filesystem::path& path);
  /// Changes whenever the file is written to.
  struct Stamp {
    std::int64_t seconds, nanoseconds, size;
    bool operator==(const Stamp&) const = default;
  };
  Stamp stamp() const;
  /// The content, for documents; throws Error when it is larger than `limit`.
  std::string read(std::uint64_t limit) const;
};

/// Reads a span in large pieces; throws Error (layer-truncated) when the file became shorter.
class SpanStream : public ByteStream {
 public:
  explicit SpanStream(FileSpan span);
  std::string_view next() override;
  std::uint64_t skip(std::uint64_t size) override;
  /// Bytes handed out or left out so far.
  std::uint64_t position() const noexcept { return position_; }

 private:
  FileSpan span_;
  std::uint64_t position_ = 0;
  std::unique_ptr<char[]> buffer_;
};

/// Passes on what it reads from another stream, and takes its digest on the way.
class HashingStream : public ByteStream {
 public:
  explicit HashingStream(ByteStream& under) : under_(under) {}
  std::string_view next() override;
  std::uint64_t position() const noexcept { return position_; }
  /// Reads what is left, and ends the digest.
  Digest finish();

 private:
  ByteStream& under_;
  Sha256 hash_;
  std::uint64_t position_ = 0;
};

}  // namespace dsec::layers
