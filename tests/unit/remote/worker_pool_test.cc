#include "core/remote/edge/worker_pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>

namespace dsec::remote {
namespace {

constexpr std::chrono::seconds kSoon{10};

TEST_CASE("whoever waits for one sandbox keeps nobody from another", "[remote]") {
  std::promise<void> answers;
  const std::shared_future<void> answer = answers.get_future().share();
  std::promise<void> others, nobodys;
  std::atomic<int> running = 0, done = 0;
  {
    WorkerPool pool(4, 8);
    const auto hangs = [&] {
      ++running;
      answer.wait();
      ++done;
    };
    for (int i = 0; i < 4; ++i) REQUIRE(pool.take("hung", hangs));
    for (int i = 0; i < 100 && running < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(running == 2);
    // Of what waits half may be one's, too.
    while (pool.take("hung", hangs)) {
    }
    CHECK(pool.waiting() == 4);
    REQUIRE(pool.take("other", [&] { others.set_value(); }));
    REQUIRE(pool.take("", [&] { nobodys.set_value(); }));
    CHECK(others.get_future().wait_for(kSoon) == std::future_status::ready);
    CHECK(nobodys.get_future().wait_for(kSoon) == std::future_status::ready);
    answers.set_value();
  }
  // What was taken is done.
  CHECK(done == 6);
}

TEST_CASE("threads of transfers are shared between sandboxes", "[remote]") {
  std::promise<void> answers;
  const std::shared_future<void> answer = answers.get_future().share();
  ThreadLimit threads(4);
  const auto hangs = [&] { answer.wait(); };
  CHECK(threads.take("hung", hangs));
  CHECK(threads.take("hung", hangs));
  CHECK_FALSE(threads.take("hung", hangs));
  CHECK(threads.take("other", hangs));
  CHECK(threads.take("", hangs));
  CHECK_FALSE(threads.take("third", hangs));
  answers.set_value();
  threads.finish();
  CHECK(threads.running() == 0);
}

}  // namespace
}  // namespace dsec::remote
