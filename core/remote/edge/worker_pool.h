#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dsec::remote {

/// A fixed number of threads for work that waits. What it is given must not throw. Work for one sandbox, which may be
/// what it waits for, gets half of the threads and of the queue at most: `whose` tells it, and empty is nobody's.
class WorkerPool {
 public:
  WorkerPool(std::size_t threads, std::size_t longest_queue);
  ~WorkerPool() { finish(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Takes nothing more, and waits for all that it has taken.
  void finish();
  /// False when it has as much waiting as it may, or was finished: nothing is done then.
  bool take(const std::string& whose, std::function<void()> work);
  std::size_t waiting() const;

 private:
  struct Waiting {
    std::string whose;
    std::function<void()> work;
  };
  struct Share {
    std::size_t running = 0, waiting = 0;
  };
  void run();
  std::deque<Waiting>::iterator next();

  const std::size_t most_of_one_, longest_queue_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_;
  std::map<std::string, Share> shares_;  ///< of those who have any
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// Threads for work whose length somebody else decides, such as a client that reads slowly: each has its own, and there
/// are no more than so many, half of them for one sandbox.
class ThreadLimit {
 public:
  explicit ThreadLimit(std::size_t most) : most_(most) {}
  ~ThreadLimit() { finish(); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  /// Takes nothing more, and waits for all.
  void finish();
  /// False when there are as many as there may be, or it was finished. What it is given must not throw. `whose` is as
  /// above.
  bool take(const std::string& whose, std::function<void()> work);
  std::size_t running() const;

 private:
  const std::size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t running_ = 0;
  std::map<std::string, std::size_t> shares_;  ///< of those who have any
  bool ending_ = false;
};

}  // namespace dsec::remote
