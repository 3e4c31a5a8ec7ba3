#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace dsec::remote {

/// What an edge counts, in the text format of Prometheus. Any thread.
class Metrics {
 public:
  void count(const std::string& call, int status, std::uint64_t received, std::uint64_t sent,
             std::chrono::microseconds took);
  /// Counts a stream as open as long as what it returns lives.
  std::shared_ptr<void> open_stream();

  /// `gauges`: what others know, by name, with the help text of each.
  std::string text(const std::string& edge,
                   const std::map<std::string, std::pair<std::string, std::uint64_t>>& gauges) const;

 private:
  struct Calls {
    std::map<int, std::uint64_t> by_status;
    std::uint64_t count = 0;
    double seconds = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Calls> calls_;
  std::uint64_t received_ = 0, sent_ = 0, streams_ = 0;
};

}  // namespace dsec::remote
