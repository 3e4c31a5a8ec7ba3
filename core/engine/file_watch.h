#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsec::engine {

/// Something happened to a file of a sandbox.
struct FileEvent {
  enum class Kind {
    Created,
    Modified,  ///< its content
    Closed,    ///< by somebody who had it open for writing: what was written is whole
    Attributes,
    Deleted,
    Moved,     ///< from `from` to `path`, both below what is watched; else it is Created or Deleted
    Overflow,  ///< events were lost: look at the files themselves
    Ended,     ///< the last: what was watched is gone, or the sandbox has ended
  };
  Kind kind;
  std::string path, from;  ///< absolute, as seen inside; bytes
  bool directory = false;
};
std::string_view to_string(FileEvent::Kind kind);

/// Events from the moment that it was made on. One thread.
class FileWatch {
 public:
  virtual ~FileWatch() = default;
  /// Waits for the next event; empty when `timeout` has passed. After Ended there is none.
  virtual std::optional<FileEvent> next(std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
};

}  // namespace dsec::engine
