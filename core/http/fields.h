#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsec::http {

/// What stands in header lines.

/// Without the blanks around it.
std::string trimmed(std::string_view text);
/// Decimal digits and nothing else.
std::optional<std::uint64_t> number(std::string_view text);

/// "bytes 100-199/500": where the part begins, and of how many bytes; the total may be "*".
struct ContentRange {
  std::uint64_t first = 0;
  std::optional<std::uint64_t> total;
};
std::optional<ContentRange> parse_content_range(std::string_view text);

}  // namespace dsec::http
