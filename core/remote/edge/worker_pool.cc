#include "core/remote/edge/worker_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace dsec::remote {

WorkerPool::WorkerPool(std::size_t threads, std::size_t longest_queue)
    : most_of_one_(threads / 2), longest_queue_(longest_queue) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

void WorkerPool::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool WorkerPool::take(const std::string& whose, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || queue_.size() >= longest_queue_) return false;
    if (!whose.empty()) {
      const auto share = shares_.find(whose);
      if (share != shares_.end() && share->second.waiting >= longest_queue_ / 2) return false;
      ++shares_[whose].waiting;
    }
    queue_.push_back({whose, std::move(work)});
  }
  changed_.notify_one();
  return true;
}

std::size_t WorkerPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

// The first that may run now.
std::deque<WorkerPool::Waiting>::iterator WorkerPool::next() {
  return std::find_if(queue_.begin(), queue_.end(), [this](const Waiting& waiting) {
    return waiting.whose.empty() || shares_.at(waiting.whose).running < most_of_one_;
  });
}

// Whoever ends work looks for more itself: nobody else needs to be told of the room that it leaves.
void WorkerPool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto found = queue_.end();
    changed_.wait(lock, [&] { return (found = next()) != queue_.end() || (ending_ && queue_.empty()); });
    if (found == queue_.end()) return;
    Waiting taken = std::move(*found);
    queue_.erase(found);
    // Those who wait for the end.
    if (ending_ && queue_.empty()) changed_.notify_all();
    if (!taken.whose.empty()) {
      Share& share = shares_.at(taken.whose);
      --share.waiting;
      ++share.running;
    }
    lock.unlock();
    taken.work();
    taken.work = nullptr;
    lock.lock();
    if (taken.whose.empty()) continue;
    const auto share = shares_.find(taken.whose);
    if (--share->second.running + share->second.waiting == 0) shares_.erase(share);
  }
}

void ThreadLimit::finish() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.wait(lock, [this] { return running_ == 0; });
}

bool ThreadLimit::take(const std::string& whose, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || running_ >= most_) return false;
    if (!whose.empty()) {
      const auto share = shares_.find(whose);
      if (share != shares_.end() && share->second >= most_ / 2) return false;
      ++shares_[whose];
    }
    ++running_;
  }
  const auto ended = [this, whose] {
    const std::lock_guard lock(mutex_);
    if (const auto share = shares_.find(whose); share != shares_.end() && --share->second == 0) shares_.erase(share);
    --running_;
    changed_.notify_all();
  };
  try {
    std::thread([ended, work = std::move(work)]() mutable {
      work();
      work = nullptr;
      ended();
    }).detach();
  } catch (const std::system_error&) {
    ended();
    return false;
  }
  return true;
}

std::size_t ThreadLimit::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

}  // namespace dsec::remote
