#include "core/base/error.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <numeric>

namespace dsec {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : (lead & 0xF0) == 0xE0       ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (length == 3 && ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F))) return 0;
  if (length == 4 && ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F))) return 0;
  return length;
}

}  // namespace

std::string Error::message() const {
  std::string text = chain_.front();
  for (const auto& cause : std::span(chain_).subspan(1)) text += ": " + cause;
  return text;
}

std::string errno_text(int error_number) {
  std::string text = strerrordesc_np(error_number) ? strerrordesc_np(error_number) : "Unknown error";
  const char* name = strerrorname_np(error_number);
  return text + " (" + (name ? name : std::to_string(error_number).c_str()) + ")";
}

Error system_error(std::string attempt, int error_number) {
  const int number = error_number == -1 ? errno : error_number;
  return Error(ErrorKind::Failed, std::move(attempt) + ": " + errno_text(number));
}

Error usage_error(std::string cause) { return Error(ErrorKind::Usage, std::move(cause)); }
Error failure(std::string cause) { return Error(ErrorKind::Failed, std::move(cause)); }

std::string quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    const std::size_t length = utf8_length(text);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out + "'";
}

std::vector<std::string> nearest_names(std::string_view wrong, std::span<const std::string> candidates,
                                       std::size_t limit) {
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(wrong, candidate);
    if (distance <= std::max<std::size_t>(2, wrong.size() / 3)) near.emplace_back(distance, candidate);
  }
  std::sort(near.begin(), near.end());
  if (near.size() > limit) near.resize(limit);
  std::vector<std::string> names;
  for (auto& [distance, name] : near) names.push_back(std::move(name));
  return names;
}

}  // namespace dsec
