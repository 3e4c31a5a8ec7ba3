#include "core/base/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>

#include "core/base/error.h"

namespace dsec {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKibi = 1024;
constexpr std::array kSizes = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", kKibi},
    Unit{"kib", kKibi},
    Unit{"m", kKibi* kKibi},
    Unit{"mib", kKibi* kKibi},
    Unit{"g", kKibi* kKibi* kKibi},
    Unit{"gib", kKibi* kKibi* kKibi},
    Unit{"t", kKibi* kKibi* kKibi* kKibi},
    Unit{"tib", kKibi* kKibi* kKibi* kKibi},
    Unit{"kb", 1e3},
    Unit{"mb", 1e6},
    Unit{"gb", 1e9},
    Unit{"tb", 1e12},
};
constexpr std::array kDurations = {Unit{"", 1000},    Unit{"ms", 1},        Unit{"s", 1000},
                                   Unit{"m", 60'000}, Unit{"h", 3'600'000}, Unit{"d", 86'400'000}};

// Reads "<digits>[.<digits>]" from the front of `text`; negative when there is none.
double take_number(std::string_view& text) {
  std::size_t end = 0, dots = 0;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == '.'))
    dots += text[end++] == '.';
  if (end == 0 || dots > 1 || text[0] == '.' || text[end - 1] == '.' || end > 24) return -1;
  double value = 0, scale = 1;
  bool fraction = false;
  for (const char c : text.substr(0, end)) {
    if (c == '.') {
      fraction = true;
    } else if (fraction) {
      value += (c - '0') * (scale /= 10);
    } else {
      value = value * 10 + (c - '0');
    }
  }
  text.remove_prefix(end);
  return value;
}

std::string lower_letters(std::string_view& text) {
  std::string out;
  while (!text.empty() && std::isalpha(static_cast<unsigned char>(text.front()))) {
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(text.front())));
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace

std::uint64_t parse_size(std::string_view text) {
  std::string_view rest = text;
  const double value = take_number(rest);
  const std::string name = lower_letters(rest);
  for (const Unit& unit : kSizes)
    if (value >= 0 && rest.empty() && name == unit.name && value * unit.factor < 9.2e18)
      return static_cast<std::uint64_t>(std::llround(value * unit.factor));
  throw usage_error(quote(text) + " is no size").hint("write it like 512MiB, 3GB or 1073741824");
}

std::chrono::milliseconds parse_duration(std::string_view text) {
  std::string_view rest = text;
  double total = 0;
  bool valid = !text.empty();
  while (valid && !rest.empty()) {
    const double value = take_number(rest);
    const std::string name = lower_letters(rest);
    const auto unit = std::find_if(kDurations.begin(), kDurations.end(), [&](const Unit& u) { return u.name == name; });
    valid = value >= 0 && unit != kDurations.end() && !(name.empty() && (!rest.empty() || total > 0));
    if (valid) total += value * unit->factor;
  }
  if (!valid || total > 9.2e15)
    throw usage_error(quote(text) + " is no duration").hint("write it like 90s, 5m, 1h30m or 250ms");
  return std::chrono::milliseconds(std::llround(total));
}

std::string format_size(std::uint64_t bytes) {
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, kNames[unit]);
  return text;
}

std::string format_duration(std::chrono::milliseconds duration) {
  const std::int64_t ms = duration.count();
  char text[64];
  if (ms < 1000) return std::to_string(ms) + "ms";
  if (ms < 60'000) {
    std::snprintf(text, sizeof text, ms % 1000 ? "%.1fs" : "%.0fs", static_cast<double>(ms) / 1000);
    return text;
  }
  const std::int64_t s = ms / 1000;
  std::string out;
  if (s >= 3600) out += std::to_string(s / 3600) + "h";
  if (s % 3600 >= 60) out += std::to_string(s % 3600 / 60) + "m";
  if (s % 60 && s < 3600) out += std::to_string(s % 60) + "s";
  return out;
}

}  // namespace dsec
