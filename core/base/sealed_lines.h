#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace dsec {

/// JSON Lines whose last member "crc" is a checksum of the line and of all before it; man/dsec-trajectory.5.md is the
/// reference.

/// `body` (one JSON object) as such a line, with its newline; `checksum` is that of the line before (0: none), and
/// becomes that of this one.
std::string sealed_line(std::string_view body, std::uint32_t& checksum);

/// The checksum that a line (without its newline) says it has; false when it says none.
bool read_seal(std::string_view line, std::string_view& body, std::uint32_t& checksum);

/// Reads a file of them line by line and checks each. Throws Error when the file cannot be read.
class SealedLines {
 public:
  explicit SealedLines(const std::filesystem::path& file);
  ~SealedLines();
  SealedLines(const SealedLines&) = delete;
  SealedLines& operator=(const SealedLines&) = delete;

  /// The next line that is whole and right; false at the end, before a line that was never finished, and at damage.
  bool next();

  /// Valid until next().
  std::string_view text() const { return text_; }
  Json json() const;
  const std::string& damage() const { return damage_; }
  void damaged(const std::string& why) { damage_ = why; }
  std::uint64_t number() const { return number_; }
  std::uint32_t checksum() const { return checksum_; }
  std::uint64_t good_bytes() const { return good_bytes_; }

 private:
  bool check();

  const std::filesystem::path file_;
  std::unique_ptr<FILE, int (*)(FILE*)> stream_;
  std::string line_;
  std::string_view text_;
  std::string damage_;
  std::uint64_t number_ = 0, good_bytes_ = 0;
  std::uint32_t checksum_ = 0;
};

}  // namespace dsec
