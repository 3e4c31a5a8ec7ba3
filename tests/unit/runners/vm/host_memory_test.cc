#include "runners/vm/host_memory.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"

namespace dsec::runners {

TEST_CASE("what a process has for itself is told from what others have, too", "[runners][memory]") {
  const engine::HostMemory memory = parse_host_memory(
      "55d0c0000000-7ffd00000000 ---p 00000000 00:00 0                          [rollup]\n"
      "Rss:              300000 kB\n"
      "Pss:              150000 kB\n"
      "Pss_Dirty:         99000 kB\n"
      "Pss_Anon:          99000 kB\n"
      "Pss_File:          50000 kB\n"
      "Pss_Shmem:          1000 kB\n");
  CHECK(memory.own == 100'000ull << 10);
  CHECK(memory.shared == 200'000ull << 10);
  CHECK(memory.part_of_shared == 50'000ull << 10);
  CHECK_THROWS_WITH(parse_host_memory("Rss: 1 kB\n"), Catch::Contains("Pss_Anon"));
}

TEST_CASE("a process that is gone has no memory", "[runners][memory]") {
  const auto own = host_memory(::getpid());
  REQUIRE(own);
  CHECK(own->own > 0);
  CHECK(own->shared > own->part_of_shared / 2);
  CHECK_FALSE(host_memory(0x3ffffff));
}

}  // namespace dsec::runners
