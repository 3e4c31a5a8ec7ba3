#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsec {

/// "64MiB", "3GB", "512k", "1024": K, M, G, T are powers of 1024 as docker users type them, and so are KiB…; KB, MB,
/// GB, TB are powers of 1000. Throws Error (Usage).
std::uint64_t parse_size(std::string_view text);

/// "90", "90s", "5m", "3h", "1h30m", "250ms", "2d"; a bare number is seconds. Throws Error (Usage).
std::chrono::milliseconds parse_duration(std::string_view text);

/// "1.5 GiB"; bytes below 1 KiB in full.
std::string format_size(std::uint64_t bytes);
/// "1h30m", "5m", "2.5s", "250ms".
std::string format_duration(std::chrono::milliseconds duration);

}  // namespace dsec
