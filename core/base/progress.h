#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsec {

/// Where long work tells how far it is. Calls may come from any thread; an implementation never throws.
class Progress {
 public:
  virtual ~Progress() = default;
  /// A step began: "import base/debian:12".
  virtual void begin(std::string_view step) { (void)step; }
  /// Bytes done of a step, and of how many (0: unknown).
  virtual void advance(std::string_view step, std::uint64_t done, std::uint64_t total) {
    (void)step, (void)done, (void)total;
  }
  /// A step ended: a short result such as "cached" or "12.3 MiB in 4s".
  virtual void end(std::string_view step, std::string_view result) { (void)step, (void)result; }
  /// Something a person should know although the work goes on.
  virtual void warn(std::string_view message) { (void)message; }
  /// A line of output of a build step.
  virtual void output(std::string_view step, std::string_view line) { (void)step, (void)line; }
};

}  // namespace dsec
