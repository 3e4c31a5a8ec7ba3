#include "core/base/json_bytes.h"

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace dsec {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Length of the well-formed sequence at the beginning of `bytes`; 0: none.
std::size_t sequence_length(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (at(0) < 0x80) return 1;
  std::size_t length = 0;
  std::uint32_t value = 0, least = 0;
  if (at(0) >= 0xc2 && at(0) <= 0xdf) length = 2, value = at(0) & 0x1fu, least = 0x80;
  if (at(0) >= 0xe0 && at(0) <= 0xef) length = 3, value = at(0) & 0xfu, least = 0x800;
  if (at(0) >= 0xf0 && at(0) <= 0xf4) length = 4, value = at(0) & 0x7u, least = 0x10000;
  if (length == 0 || bytes.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (at(i) & 0x3fu);
  }
  return value < least || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t length = sequence_length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::string from_base64(std::string_view text) {
  std::string bytes;
  if (text.size() % 4 != 0) throw usage_error("base64 of " + std::to_string(text.size()) + " characters");
  for (std::size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const std::size_t padding = !last || text[at + 3] != '=' ? 0 : text[at + 2] == '=' ? 2 : 1;
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t digit = i < 4 - padding ? kDigits.find(text[at + i]) : 0;
      if (digit == std::string_view::npos) throw usage_error("no base64: " + quote(text.substr(at, 4)));
      group = group << 6 | static_cast<std::uint32_t>(digit);
    }
    for (std::size_t i = 0; i < 3 - padding; ++i) bytes += static_cast<char>(group >> (16 - 8 * i) & 0xff);
  }
  return bytes;
}

Json json_bytes(std::string_view bytes) {
  if (is_utf8(bytes)) return std::string(bytes);
  return {{"base64", base64(bytes)}};
}

std::string bytes_of_json(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || value.size() != 1) throw usage_error("a string or {\"base64\": …} is expected");
  return from_base64(json_string(value, "base64"));
}

}  // namespace dsec
