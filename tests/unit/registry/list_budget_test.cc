#include "registry/list_budget.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"

namespace {

using Catch::Matchers::Contains;
using dsec::registry::ListBudget;

TEST_CASE("a list that never ends is read for so many names and bytes", "[registry]") {
  ListBudget names("host:5000");
  for (int i = 0; i < 5'000'000; ++i) names.take("");
  CHECK_THROWS_WITH(names.take(""), Contains("the list of host:5000") && Contains("more than 5000000 names"));
  ListBudget bytes("host:5000");
  const std::string name(1 << 20, 'x');
  for (int i = 0; i < 512; ++i) bytes.take(name);
  CHECK_THROWS_WITH(bytes.take("x"), Contains("536870912 bytes"));
}

}  // namespace
