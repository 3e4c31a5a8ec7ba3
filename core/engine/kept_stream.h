#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/model/operation.h"

namespace dsec::engine {

/// What stands in a log itself, of each stream of an operation.
inline constexpr std::size_t kInlineStream = 16u << 10;

/// Keeps what an operation says, as a keeper keeps the output of commands: in the log while it is short, else in a file
/// beside it. Of more than `limit` bytes the beginning is kept, and the rest counted.
class KeptStream {
 public:
  /// The file is *SEQ.head* in `trajectory`, which may be empty: then nothing is kept.
  KeptStream(std::filesystem::path trajectory, std::uint64_t seq, std::uint64_t limit);
  /// A file that no finish() has named is removed.
  ~KeptStream();
  KeptStream(const KeptStream&) = delete;
  KeptStream& operator=(const KeptStream&) = delete;

  /// What cannot be kept is told by finish().
  void add(std::string_view part);
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t dropped() const noexcept { return bytes_ - kept_; }
  /// Puts what was kept into `done`, with its bytes on the disk when `durable`; then it throws Error when they are not,
  /// and else keeps nothing.
  void finish(Operation::Done& done, bool durable);

 private:
  void keep(std::string_view part);
  void append(std::string_view part);

  const std::filesystem::path trajectory_;
  const std::string name_;
  const std::uint64_t limit_;
  std::string inline_;
  UniqueFd file_;
  std::uint64_t bytes_ = 0, kept_ = 0, file_bytes_ = 0;
  bool named_ = false;
  std::optional<Error> failed_;
};

/// Puts what an operation was given into `done`: likewise, in *SEQ.stdin*; nothing of what is longer than `limit`.
/// Throws Error when `durable`.
void keep_input(const std::filesystem::path& trajectory, std::uint64_t seq, std::string_view input, std::uint64_t limit,
                Operation::Done& done, bool durable);

}  // namespace dsec::engine
