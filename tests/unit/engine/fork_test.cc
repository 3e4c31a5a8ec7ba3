#include "core/engine/fork.h"

#include <catch2/catch.hpp>

namespace dsec::engine {
namespace {

TEST_CASE("a fork has a host name and a machine id of its own, unless a host name was chosen", "[engine][fork]") {
  SandboxInfo parent;
  parent.id = "parent-id";
  parent.spec.hostname = parent.id;  // as its lease says when nobody chose one
  parent.spec.remove_at_end = true;
  const SandboxSpec child = fork_spec(parent, {}, {Digest::of("x")}, "child");
  CHECK(child.hostname.empty());
  CHECK(child.name == "child");
  CHECK(child.machine_id.size() == 32);
  CHECK_FALSE(child.remove_at_end);
  CHECK(child.labels.at(kForkedFromLabel) == "parent-id");
  parent.spec.hostname = "web";
  const SandboxSpec other = fork_spec(parent, {}, {Digest::of("x")}, "other");
  CHECK(other.hostname == "web");
  CHECK(other.machine_id != child.machine_id);
}

}  // namespace
}  // namespace dsec::engine
