#include <catch2/catch.hpp>

#include "runners/isolation/cgroups.h"

using namespace dsec::runners;

TEST_CASE("a host with v2 only is seen as one hierarchy", "[runners][cgroups]") {
  const auto found = parse_cgroup_mounts(
      "24 1 0:22 / /sys rw,nosuid - sysfs sysfs rw\n"
      "30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  REQUIRE(found.size() == 1);
  CHECK(found[0].v2);
  CHECK(found[0].root == "/sys/fs/cgroup");
  CHECK_FALSE(found[0].read_only);
}

TEST_CASE("a hybrid host shows v1 controllers beside v2", "[runners][cgroups]") {
  const auto found = parse_cgroup_mounts(
      "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
      "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  REQUIRE(found.size() == 3);
  CHECK(found[0].controllers == std::vector<std::string>{"rw", "cpu", "cpuacct"});
  CHECK(found[2].v2);
}

TEST_CASE("a container's read-only cgroup mount is recognised, and the last mount over a place counts",
          "[runners][cgroups]") {
  const auto found = parse_cgroup_mounts(
      "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
      "99 24 0:26 /docker/ab /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
      "98 24 0:27 / /odd\\040place ro - cgroup cgroup rw,pids\n");
  REQUIRE(found.size() == 2);
  CHECK(found[0].read_only);
  CHECK(found[1].root == "/odd place");
}

TEST_CASE("lines that are no mounts are passed over", "[runners][cgroups]") {
  CHECK(parse_cgroup_mounts("").empty());
  CHECK(parse_cgroup_mounts("garbage\n - \n1 2 3 - cgroup\n\\ - cgroup2").size() <= 2);
}
