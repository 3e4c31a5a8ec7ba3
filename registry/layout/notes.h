#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::registry {

/// Small files by which those who work on a registry tell each other what they are about to do: leases, and what gc is
/// going to remove (man/dsec-registry.5.md). Throws Error. Any number of threads.
class Notes {
 public:
  virtual ~Notes() = default;

  /// Names of those in a folder ("leases/x.json"), as they are at this moment; empty where the registry keeps none.
  virtual std::vector<std::string> names(std::string_view folder) const = 0;
  /// Empty when there is no such note.
  virtual std::optional<std::string> read(const std::string& name) const = 0;
  /// Writes or replaces it as a whole; temporary files are named after `author`.
  virtual void write(const std::string& name, const std::string& text, const std::string& author) const = 0;
  /// From then on it is not there, or reads as nothing that counts.
  virtual void remove(const std::string& name) const = 0;
  /// When a note was written; empty when there is none. Throws Error where that is not known.
  virtual std::optional<std::chrono::system_clock::time_point> written(const std::string& name) const = 0;
};

/// No note is larger.
inline constexpr std::uint64_t kLargestNote = 64ull << 20;

}  // namespace dsec::registry
