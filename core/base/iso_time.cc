#include "core/base/iso_time.h"

#include <stdio.h>
#include <time.h>

#include <cstdint>

#include "core/base/error.h"

namespace dsec {
namespace {
using std::chrono::microseconds;
using std::chrono::system_clock;

/// Takes a text apart from its beginning.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}
  bool skip(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // Exactly `digits` of them, with a value within the limits.
  bool number(std::size_t digits, int least, int most, int& value) {
    if (rest_.size() < digits) return false;
    value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      if (rest_[i] < '0' || rest_[i] > '9') return false;
      value = value * 10 + (rest_[i] - '0');
    }
    rest_.remove_prefix(digits);
    return value >= least && value <= most;
  }
  // Of any length; only microseconds count.
  bool fraction(std::int64_t& micros) {
    std::int64_t weight = 100'000;
    std::size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits, weight /= 10)
      micros += weight * (rest_[digits] - '0');
    rest_.remove_prefix(digits);
    return digits > 0;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace

std::string format_iso_time(system_clock::time_point time) {
  const std::int64_t micros = std::chrono::duration_cast<microseconds>(time.time_since_epoch()).count();
  const time_t seconds = micros / 1'000'000;
  tm parts = {};
  ::gmtime_r(&seconds, &parts);
  char text[80];
  ::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900, parts.tm_mon + 1,
             parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, static_cast<int>(micros % 1'000'000));
  return text;
}

system_clock::time_point parse_iso_time(std::string_view text) {
  const auto fault = [&] { return usage_error(quote(text.substr(0, 64)) + " is no ISO 8601 time of 1970 to 2200"); };
  Cursor at(text);
  tm parts = {};
  const bool date = at.number(4, 1970, 2200, parts.tm_year) && at.skip('-') && at.number(2, 1, 12, parts.tm_mon) &&
                    at.skip('-') && at.number(2, 1, 31, parts.tm_mday) && (at.skip('T') || at.skip(' '));
  if (!date || !at.number(2, 0, 23, parts.tm_hour) || !at.skip(':') || !at.number(2, 0, 59, parts.tm_min) ||
      !at.skip(':') || !at.number(2, 0, 60, parts.tm_sec))
    throw fault();
  std::int64_t micros = 0;
  if (at.skip('.') && !at.fraction(micros)) throw fault();
  int hours = 0, minutes = 0;
  const bool east = at.skip('+'), west = !east && at.skip('-');
  if (east || west) {
    if (!at.number(2, 0, 23, hours)) throw fault();
    at.skip(':');
    if (!at.number(2, 0, 59, minutes)) throw fault();
  } else {
    at.skip('Z');
  }
  if (!at.empty()) throw fault();
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  const std::int64_t offset = (hours * 60 + minutes) * 60 * (west ? -1 : 1);
  return system_clock::time_point(microseconds((::timegm(&parts) - offset) * 1'000'000 + micros));
}

}  // namespace dsec
