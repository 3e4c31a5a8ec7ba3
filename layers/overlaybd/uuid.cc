#include "layers/overlaybd/uuid.h"

#include <sys/random.h>

#include <cctype>
#include <cerrno>

#include "core/base/error.h"

namespace dsec::layers::overlaybd {
namespace {

constexpr std::string_view kNone = "00000000-0000-0000-0000-000000000000";

bool is_uuid(std::string_view text) {
  if (text.size() != kNone.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (kNone[i] == '-' ? text[i] != '-' : std::isxdigit(static_cast<unsigned char>(text[i])) == 0) return false;
  return true;
}

std::string in_capitals(std::string_view uuid) {
  std::string capitals;
  for (const char c : uuid) capitals += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return capitals == kNone ? "" : capitals;
}

}  // namespace

std::string random_uuid() {
  unsigned char bytes[16];
  while (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    if (errno != EINTR) throw system_error("get random numbers");
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);  // version 4: random
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);  // in the layout of RFC 4122
  std::string text;
  for (std::size_t i = 0; i < sizeof bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += "0123456789ABCDEF"[bytes[i] >> 4];
    text += "0123456789ABCDEF"[bytes[i] & 15];
  }
  return text;
}

std::string parse_uuid(std::string_view text) {
  if (!is_uuid(text))
    throw usage_error(quote(text) + " is no UUID").hint("write it like 3F2C9D1E-0000-4000-8000-000000000001");
  return in_capitals(text);
}

std::string stored_uuid(std::string_view bytes) {
  const std::string_view text = bytes.substr(0, kNone.size());
  return is_uuid(text) ? in_capitals(text) : "";
}

std::string shown_uuid(std::string_view uuid) { return std::string(uuid.empty() ? kNone : uuid); }

}  // namespace dsec::layers::overlaybd
