#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace dsec::http {

/// How often something is tried, and how long one waits between.
struct RetryPolicy {
  int tries = 6;                              ///< without any progress between them
  std::chrono::milliseconds first_wait{500};  ///< doubled with each try
  std::chrono::milliseconds longest_wait{20'000};
  /// A server that asks to be left alone for longer than this is not waited for.
  std::chrono::milliseconds patience{120'000};
};

/// Whether a server that answers so may well answer otherwise soon.
bool is_passing(int status);

/// A date of HTTP; empty when it is none.
std::optional<std::chrono::system_clock::time_point> parse_date(const std::string& value);

/// What Retry-After says: seconds, or a date. Empty when it says nothing that can be understood.
std::optional<std::chrono::milliseconds> parse_retry_after(const std::string& value,
                                                           std::chrono::system_clock::time_point now);

/// Before the try after `tries` that failed: doubled each time, and something between half and all of it, so that many
/// clients that failed together do not come back together. `chance` is in [0, 1).
std::chrono::milliseconds wait_after(int tries, const RetryPolicy& policy, double chance);

}  // namespace dsec::http
