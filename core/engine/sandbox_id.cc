#include "core/engine/sandbox_id.h"

#include <sys/random.h>

#include <algorithm>

#include "core/base/error.h"

namespace dsec::engine {

std::string random_id(std::size_t length) {
  static constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
  std::string id(length, '\0');
  if (::getrandom(id.data(), length, 0) != static_cast<ssize_t>(length)) throw system_error("get random bytes");
  for (char& c : id) c = kAlphabet[static_cast<unsigned char>(c) & 31];
  return id;
}

bool is_id_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '2' && c <= '7'); });
}

bool is_sandbox_id(std::string_view text) { return text.size() == kSandboxIdSize && is_id_text(text); }

}  // namespace dsec::engine
