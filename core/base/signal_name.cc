#include "core/base/signal_name.h"

#include <signal.h>
#include <string.h>

#include <charconv>

#include "core/base/error.h"

namespace dsec {

int signal_number(const std::string& name) {
  if (name.empty()) return SIGTERM;
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size() && number > 0 && number <= SIGRTMAX) return number;
  std::string bare = name;
  for (char& c : bare) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  if (bare.starts_with("SIG")) bare.erase(0, 3);
  for (int candidate = 1; candidate < SIGRTMIN; ++candidate) {
    const char* const known = ::sigabbrev_np(candidate);
    if (known && bare == known) return candidate;
  }
  if (bare == "RTMIN") return SIGRTMIN;
  if (bare.starts_with("RTMIN+")) {
    const auto [to, bad] = std::from_chars(bare.data() + 6, bare.data() + bare.size(), number);
    if (bad == std::errc() && to == bare.data() + bare.size() && number >= 0 && SIGRTMIN + number <= SIGRTMAX)
      return SIGRTMIN + number;
  }
  throw usage_error("unknown signal " + quote(name)).hint("use a name like SIGTERM, or a number");
}

}  // namespace dsec
