#include "runners/isolation/id_map.h"

#include <catch2/catch.hpp>

using namespace dsec::runners;

TEST_CASE("ids come from the subordinate ids of dsec, else of containers, else from the default range",
          "[runners][ids]") {
  CHECK(id_range("", "") == kDefaultIdRange);
  CHECK(id_range("alice:100000:65536\n", "alice:100000:65536\n") == kDefaultIdRange);
  CHECK(id_range("containers:2147483648:1310720\ndsec:1000000:655360\n", "dsec:1000000:655360\n") ==
        IdRange{1000000, 10});
  CHECK(id_range("containers:2000000:131072", "containers:2000000:65536") == IdRange{2000000, 1});
}

TEST_CASE("subordinate ids that cannot serve are passed over", "[runners][ids]") {
  CHECK(id_range("dsec:1000000:65535\n", "dsec:1000000:65535\n") == kDefaultIdRange);  // less than a block
  CHECK(id_range("dsec:1000000:65536\n", "dsec:2000000:65536\n") == kDefaultIdRange);  // users and groups differ
  CHECK(id_range("dsec:0:655360\n", "dsec:0:655360\n") == kDefaultIdRange);            // would be root outside
  CHECK(id_range("dsec:4294900000:655360\n", "dsec:4294900000:655360\n") == kDefaultIdRange);
  CHECK(id_range("dsec:x:65536\ndsec\n:::\ndsec:1:2:3\n", "dsec:1:65536\n") == kDefaultIdRange);
}

TEST_CASE("a sandbox gets the same block each time, inside its range", "[runners][ids]") {
  for (int i = 0; i < 2000; ++i) {
    const std::string id = "abcdefghijklmnopqrst" + std::to_string(i);
    const IdMap map = id_map_for(id, kDefaultIdRange);
    CHECK(map == id_map_for(id, kDefaultIdRange));
    REQUIRE(map.first >= 0x10000000u);
    REQUIRE(map.first + (map.count - 1) < 0x7ffe0000u);
    REQUIRE(map.first % kIdCount == 0);
  }
  CHECK(id_map_for("a", {1000000, 1}) == IdMap{1000000, kIdCount});
}

TEST_CASE("ids are translated both ways, and the map's line is what the kernel reads", "[runners][ids]") {
  const IdMap map{.first = 300000, .count = kIdCount};
  CHECK(map.to_outside(1000) == 301000);
  CHECK(map.to_inside(301000) == 1000);
  CHECK(map.contains_outside(300000));
  CHECK_FALSE(map.contains_outside(299999));
  CHECK_FALSE(map.contains_outside(365536));
  CHECK(map.line() == "0 300000 65536\n");
}
