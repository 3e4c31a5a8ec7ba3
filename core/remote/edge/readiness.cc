#include "core/remote/edge/readiness.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"

namespace dsec::remote {
namespace {

constexpr std::uint64_t kStop = ~std::uint64_t{0};

}  // namespace

Readiness::Readiness() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!epoll_ || !stop_) throw system_error("wait for descriptors");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kStop;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), &event) != 0) throw system_error("wait for descriptors");
  thread_ = std::thread([this] { run(); });
}

Readiness::~Readiness() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void Readiness::when(int descriptor, Ready what, std::function<void()> ready) {
  const std::lock_guard lock(mutex_);
  epoll_event event = {};
  event.events = (what == Ready::ToRead ? EPOLLIN | EPOLLRDHUP : EPOLLOUT) | static_cast<std::uint32_t>(EPOLLONESHOT);
  // A descriptor may have been closed and be another one by the time that its event is looked at.
  event.data.u64 = next_number_ << 32 | static_cast<std::uint32_t>(descriptor);
  waiting_[descriptor] = {next_number_ & 0xffffffff, std::move(ready)};
  next_number_ = (next_number_ + 1) & 0x7fffffff;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event) == 0) return;
  if (errno == ENOENT && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return;
  const int error = errno;
  waiting_.erase(descriptor);
  throw system_error("wait for a descriptor", error);
}

void Readiness::forget(int descriptor) {
  // What it holds goes when nothing is locked: it may be somebody who forgets descriptors in turn.
  std::unordered_map<int, Waiting>::node_type forgotten;
  const std::lock_guard lock(mutex_);
  forgotten = waiting_.extract(descriptor);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void Readiness::run() {
  epoll_event events[64];
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events, 64, -1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kStop) return;
      const int descriptor = static_cast<int>(events[i].data.u64 & 0xffffffff);
      const std::uint64_t number = events[i].data.u64 >> 32;
      std::function<void()> ready;
      {
        const std::lock_guard lock(mutex_);
        const auto found = waiting_.find(descriptor);
        if (found == waiting_.end() || found->second.number != number) continue;
        ready = std::move(found->second.ready);
        waiting_.erase(found);
      }
      ready();
    }
  }
}

}  // namespace dsec::remote
