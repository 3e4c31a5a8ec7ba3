#pragma once

#include <cstdint>
#include <filesystem>

#include "core/base/unique_fd.h"

namespace dsec::layers {

/// An advisory lock on one byte of a file (F_OFD_SETLKW), so that one file serves any number of names. Released on
/// destruction and when the process dies.
class RangeLock {
 public:
  enum class Mode { Shared, Exclusive };
  enum class Wait { Yes, No };
  /// The file is made when missing. With Wait::No an object that converts to false did not get the lock.
  RangeLock(const std::filesystem::path& path, std::uint64_t byte, Mode mode, Wait wait = Wait::Yes);
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

 private:
  UniqueFd fd_;
};

}  // namespace dsec::layers
