#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/base/unique_fd.h"

namespace dsec::remote {

enum class Ready { ToRead, ToWrite };

/// Tells when descriptors of others become ready, any number of them with one thread, and changes nothing about them:
/// whoever reads them may go on to do so with calls that wait.
class Readiness {
 public:
  /// Throws Error.
  Readiness();
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  /// Calls `ready` once, from its own thread, so it must not wait. One at a time for each descriptor: who wants to know
  /// of both directions has two descriptors. Throws Error for one that cannot be waited for.
  void when(int descriptor, Ready what, std::function<void()> ready);
  /// To be called before the descriptor is closed. A call may be under way still.
  void forget(int descriptor);

 private:
  void run();
  struct Waiting {
    std::uint64_t number;
    std::function<void()> ready;
  };

  UniqueFd epoll_, stop_;
  std::mutex mutex_;
  std::unordered_map<int, Waiting> waiting_;
  std::uint64_t next_number_ = 1;
  std::thread thread_;
};

}  // namespace dsec::remote
