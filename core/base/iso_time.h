#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace dsec {

/// ISO 8601 with microseconds: "2026-01-31T12:00:00.000000Z".
std::string format_iso_time(std::chrono::system_clock::time_point time);
/// "2026-01-31T12:00:00", with or without a fraction of a second and a zone ("Z", "+02:00"; none is UTC), in the years
/// 1970 to 2200. Throws Error (Usage) for another text.
std::chrono::system_clock::time_point parse_iso_time(std::string_view text);

}  // namespace dsec
