#include "runners/egress/gateway/loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"

namespace dsec::egress {

Loop::Loop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw system_error("make an epoll");
}

void Loop::run() {
  while (!stopped_) {
    int timeout = -1;
    if (!timers_.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
    }
    epoll_event events[256];
    const int count = ::epoll_wait(epoll_.get(), events, std::size(events), timeout);
    if (count < 0 && errno != EINTR) throw system_error("wait for events");
    for (int i = 0; i < count; ++i) {
      // By key, since an earlier callback of this round may have ended the watch, and another may have its memory.
      const auto found = watches_.find(events[i].data.u64);
      if (found == watches_.end()) continue;
      // A copy, since the callback may destroy the watch and itself with it.
      const Watch::Callback callback = found->second->callback_;
      callback(events[i].events);
    }
    run_timers();
    while (!later_.empty()) {
      const std::vector<std::function<void()>> actions = std::move(later_);
      later_.clear();
      for (const auto& action : actions) action();
    }
  }
}

void Loop::run_timers() {
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Timer& timer = *timers_.begin()->second;
    timers_.erase(timer.place_);
    timer.place_ = timers_.end();
    const std::function<void()> action = timer.action_;
    action();
  }
}

Watch::Watch(Loop& loop, int fd, std::uint32_t events, Callback callback)
    : loop_(loop), fd_(fd), key_(loop.next_key_++), events_(events), callback_(std::move(callback)) {
  epoll_event event = {events_, {.u64 = key_}};
  if (::epoll_ctl(loop_.epoll_.get(), EPOLL_CTL_ADD, fd_, &event) != 0) throw system_error("watch a descriptor");
  loop_.watches_.emplace(key_, this);
}

Watch::~Watch() {
  ::epoll_ctl(loop_.epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  loop_.watches_.erase(key_);
}

void Watch::want(std::uint32_t events) {
  if (events == events_) return;
  epoll_event event = {events, {.u64 = key_}};
  if (::epoll_ctl(loop_.epoll_.get(), EPOLL_CTL_MOD, fd_, &event) != 0) throw system_error("watch a descriptor");
  events_ = events;
}

Timer::Timer(Loop& loop, std::chrono::milliseconds after, std::function<void()> action)
    : loop_(loop), action_(std::move(action)), place_(loop.timers_.emplace(Clock::now() + after, this)) {}

Timer::~Timer() {
  if (place_ != loop_.timers_.end()) loop_.timers_.erase(place_);
}

}  // namespace dsec::egress
