#include "layers/build/schedule.h"

#include <atomic>
#include <catch2/catch.hpp>
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
