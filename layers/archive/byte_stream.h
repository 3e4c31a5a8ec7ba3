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
  /// What is there is wrong: it is written once more, from its start.
  void begin_anew();
  /// All is there, and stays as it is.
  void finish();
  /// There will be no more.
  void fail(Error error);

  /// How often it began anew so far, for a reader that begins.
  int beginnings();
  /// Waits for the byte at `position` and returns how many bytes are there. Throws the Error that it failed with, and
  /// one when it began more often than `beginnings`.
  std::uint64_t wait_for(std::uint64_t position, int beginnings);
  /// Waits until it is certain whether what was read since `beginnings` stays. Throws the Error that it failed with.
  bool stays(int beginnings);

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::uint64_t bytes_ = 0;
  int beginnings_ = 0;
  bool finished_ = false;
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

/// Reads a span in large pieces; throws Error (layer-truncated) when the file became shorter, and Error when
/// it comes once more.
class SpanStream : public ByteStream {
 public:
  explicit SpanStream(FileSpan span);
  std::string_view next() override;
  std::uint64_t skip(std::uint64_t size) override;
  /// Waits until it is certain whether what was read stays, or comes once more. Throws the Error of its arrival.
  bool stays() { return !span_.arrival || span_.arrival->stays(beginnings_); }
  /// Bytes handed out or left out so far.
  std::uint64_t position() const noexcept { return position_; }

 private:
  FileSpan span_;
  const int beginnings_;
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
