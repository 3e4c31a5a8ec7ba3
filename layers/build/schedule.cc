#include "layers/build/schedule.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace dsec::layers {
namespace {

enum class State { Waiting, Running, Done };

class Schedule {
 public:
  Schedule(std::size_t count, const std::vector<std::vector<std::size_t>>& after) : state_(count), after_(after) {}

  void worker(const std::function<void(std::size_t)>& work) {
    std::unique_lock lock(mutex_);
    while (true) {
      const std::size_t next = take();
      if (next == kNone) {
        if (!running_ || failed_) return;  // what still waits can only be waiting for a failure
        changed_.wait(lock);
        continue;
      }
      lock.unlock();
      std::exception_ptr error;
      try {
        work(next);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      state_[next] = State::Done;
      --running_;
      if (error && !failed_) failed_ = error;
      changed_.notify_all();
    }
  }

  void rethrow() const {
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::size_t take() {
    if (failed_) return kNone;
    for (std::size_t i = 0; i < state_.size(); ++i) {
      const bool ready =
          std::all_of(after_[i].begin(), after_[i].end(), [&](std::size_t j) { return state_[j] == State::Done; });
      if (state_[i] != State::Waiting || !ready) continue;
      state_[i] = State::Running;
      ++running_;
      return i;
    }
    return kNone;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> state_;
  const std::vector<std::vector<std::size_t>>& after_;
  std::size_t running_ = 0;
  std::exception_ptr failed_;
};

}  // namespace

void run_in_order(std::size_t count, const std::vector<std::vector<std::size_t>>& after, std::size_t jobs,
                  const std::function<void(std::size_t)>& work) {
  Schedule schedule(count, after);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::clamp<std::size_t>(jobs, 1, std::max<std::size_t>(count, 1)); ++i)
    threads.emplace_back([&] { schedule.worker(work); });
  for (std::thread& thread : threads) thread.join();
  schedule.rethrow();
}

}  // namespace dsec::layers
