#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/base/unique_fd.h"

namespace dsec::egress {

using Clock = std::chrono::steady_clock;

/// One descriptor's events. The callback runs on the loop's thread; the watch may be destroyed in any callback.
class Watch;
/// One call in the future, unless it is destroyed before.
class Timer;

/// The gateway's only thread: everything in it happens in callbacks of epoll or of a timer, none of which may block.
class Loop {
 public:
  Loop();
  /// Returns after stop().
  void run();
  void stop() { stopped_ = true; }
  /// Runs `action` when the callbacks of this round are through: objects end themselves like that.
  void later(std::function<void()> action) { later_.push_back(std::move(action)); }

 private:
  friend class Watch;
  friend class Timer;
  using Timers = std::multimap<Clock::time_point, Timer*>;
  void run_timers();

  UniqueFd epoll_;
  std::uint64_t next_key_ = 1;
  std::map<std::uint64_t, Watch*> watches_;
  Timers timers_;
  std::vector<std::function<void()>> later_;
  bool stopped_ = false;
};

class Watch {
 public:
  using Callback = std::function<void(std::uint32_t events)>;
  /// `fd` must outlive the watch.
  Watch(Loop& loop, int fd, std::uint32_t events, Callback callback);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// EPOLLIN, EPOLLOUT or both; 0 rests, and still tells of errors and hangups.
  void want(std::uint32_t events);

 private:
  friend class Loop;
  Loop& loop_;
  const int fd_;
  const std::uint64_t key_;
  std::uint32_t events_;
  Callback callback_;
};

class Timer {
 public:
  Timer(Loop& loop, std::chrono::milliseconds after, std::function<void()> action);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  friend class Loop;
  Loop& loop_;
  std::function<void()> action_;
  Loop::Timers::iterator place_;
};

}  // namespace dsec::egress
