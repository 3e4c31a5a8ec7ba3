#include "core/base/delayed_library.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "tests/support/delayed_sample.h"

namespace dsec {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a call of a library that is not there throws, and works once it is", "[base][delayed]") {
  try {
    delayed_sum_of(1, 1.0);
    FAIL("it was found");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("load libdelayed_sample.so: "));
    CHECK(error.hints().size() == 1);
  }

  REQUIRE(::dlopen(DSEC_DELAYED_SAMPLE, RTLD_NOW));  // one of this name is there now
  for (int round = 0; round < 2; ++round) {
    CHECK(delayed_sum_of(9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0) == 45);
    CHECK(delayed_sum(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16) == 1496);
  }
}

TEST_CASE("a function that a library does not have is told with its name", "[base][delayed]") {
  DelayedFunction function{nullptr, "no_such_function", "libc.so.6"};
  CHECK_THROWS_WITH(dsec_bind_delayed(&function), Contains("libc.so.6") && Contains("no_such_function"));
}

}  // namespace
}  // namespace dsec
