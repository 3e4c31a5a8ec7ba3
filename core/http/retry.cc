#include "core/http/retry.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>

namespace dsec::http {

using std::chrono::milliseconds;

bool is_passing(int status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

std::optional<std::chrono::system_clock::time_point> parse_date(const std::string& value) {
  const std::time_t date = ::curl_getdate(value.c_str(), nullptr);
  if (date == -1) return std::nullopt;
  return std::chrono::system_clock::from_time_t(date);
}

std::optional<milliseconds> parse_retry_after(const std::string& value, std::chrono::system_clock::time_point now) {
  constexpr std::int64_t kMost = 30ll * 24 * 3600;
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error == std::errc() && end == value.data() + value.size() && seconds >= 0)
    return std::chrono::seconds(std::min(seconds, kMost));
  const auto date = parse_date(value);
  if (!date) return std::nullopt;
  const std::int64_t left = std::chrono::duration_cast<std::chrono::seconds>(*date - now).count();
  return std::chrono::seconds(std::clamp<std::int64_t>(left, 0, kMost));
}

milliseconds wait_after(int tries, const RetryPolicy& policy, double chance) {
  milliseconds wait = policy.first_wait;
  for (int i = 1; i < tries && wait < policy.longest_wait; ++i) wait *= 2;
  wait = std::min(wait, policy.longest_wait);
  return milliseconds(static_cast<std::int64_t>(static_cast<double>(wait.count()) * (0.5 + chance / 2)));
}

}  // namespace dsec::http
