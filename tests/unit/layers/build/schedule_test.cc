#include "layers/build/schedule.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

namespace dsec::layers {
namespace {

TEST_CASE("work begins after what it stands on", "[layers][build]") {
  std::atomic<int> clock = 0;
  std::vector<int> done(4);
  run_in_order(4, {{}, {0}, {0}, {1, 2}}, 3, [&](std::size_t i) { done[i] = ++clock; });
  CHECK(done[0] == 1);
  CHECK(done[3] == 4);
}

TEST_CASE("what does not stand on each other runs at the same time, and no more of it than asked for",
          "[layers][build]") {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t running = 0, most = 0, met = 0;
  // Each waits until another is under way: one after the other, all but nobody would meet.
  run_in_order(7, {{}, {0}, {0}, {0}, {0}, {0}, {0}}, 3, [&](std::size_t i) {
    std::unique_lock lock(mutex);
    most = std::max(most, ++running);
    changed.notify_all();
    if (i > 0 && changed.wait_for(lock, std::chrono::seconds(5), [&] { return most >= 3; })) ++met;
    --running;
  });
  CHECK(met == 6);
  CHECK(most == 3);
}

TEST_CASE("the first failure stops what stands on it and is thrown", "[layers][build]") {
  std::atomic<int> ran = 0;
  CHECK_THROWS_AS(run_in_order(3, {{}, {0}, {1}}, 2,
                               [&](std::size_t i) {
                                 ++ran;
                                 if (i == 1) throw std::runtime_error("no");
                               }),
                  std::runtime_error);
  CHECK(ran == 2);
  run_in_order(0, {}, 2, [](std::size_t) {});
}

}  // namespace
}  // namespace dsec::layers
