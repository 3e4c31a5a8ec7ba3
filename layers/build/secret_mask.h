#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsec::layers {

/// Puts asterisks in the place of secrets. One of several lines is looked for line by line; lines of less than 6 bytes
/// stay, which would blank out what has nothing to do with them.
class SecretMask {
 public:
  explicit SecretMask(std::span<const std::string> secrets);

  /// Of the longest that is looked for, in bytes; 0: there is none.
  std::size_t longest() const noexcept { return hidden_.empty() ? 0 : hidden_.front().size(); }
  /// The beginning of `text`, masked, and taken away from it: at least `size` bytes, and to the end of a secret that
  /// begins within them.
  std::string take(std::string& text, std::size_t size) const;

 private:
  std::vector<std::string> hidden_;  // longest first: one may begin as another does
};

}  // namespace dsec::layers
