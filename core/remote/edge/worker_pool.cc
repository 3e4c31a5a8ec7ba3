#include "core/remote/edge/worker_pool.h"

#include <system_error>
#include <utility>

namespace dsec::remote {

WorkerPool::WorkerPool(std::size_t threads, std::size_t longest_queue) : longest_queue_(longest_queue) {
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

bool WorkerPool::take(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || queue_.size() >= longest_queue_) return false;
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
  return true;
}

std::size_t WorkerPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

void WorkerPool::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

void ThreadLimit::finish() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.wait(lock, [this] { return running_ == 0; });
}

bool ThreadLimit::take(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || running_ >= most_) return false;
    ++running_;
  }
  const auto ended = [this] {
    const std::lock_guard lock(mutex_);
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
