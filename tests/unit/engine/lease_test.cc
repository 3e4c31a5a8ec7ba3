#include "core/engine/lease.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/base/files.h"
#include "core/engine/home.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace {
namespace fs = std::filesystem;

TEST_CASE("a lease comes back as it was written", "[engine][lease]") {
  TempDirectory scratch(fs::temp_directory_path());
  CHECK_FALSE(Lease::read(scratch.path()));
  Lease lease;
  lease.id = random_id(22);
  lease.creator = ProcessIdentity::self();
  lease.created = std::chrono::system_clock::time_point(std::chrono::milliseconds(1234567));
  lease.spec.layers = {Digest::of("x")};
  lease.write(scratch.path());
  const auto found = Lease::read(scratch.path());
  REQUIRE(found);
  CHECK(found->id == lease.id);
  CHECK(found->creator == lease.creator);
  CHECK(found->created == lease.created);
  CHECK(found->spec == lease.spec);
  lease.spec.labels = {{"a", "b"}};
  lease.replace(scratch.path());
  CHECK(Lease::read(scratch.path())->spec == lease.spec);
}

TEST_CASE("a lease says which host name the sandbox has, also when it is its id", "[engine][lease]") {
  const auto now = std::chrono::system_clock::now();
  SandboxSpec spec;
  CHECK(Lease("the-id", ProcessIdentity::self(), now, spec).spec.hostname == "the-id");
  spec.hostname = "web";
  CHECK(Lease("the-id", ProcessIdentity::self(), now, spec).spec.hostname == "web");
}

TEST_CASE("a process of another boot or another start time is dead", "[engine][lease]") {
  ProcessIdentity self = ProcessIdentity::self();
  CHECK(self.alive());
  ProcessIdentity other = self;
  other.start_ticks += 1;
  CHECK_FALSE(other.alive());
  other = self;
  other.boot_id = "another";
  CHECK_FALSE(other.alive());
  CHECK_FALSE(ProcessIdentity{}.alive());
}

TEST_CASE("a home keeps its host id and refuses a newer format", "[engine][home]") {
  TempDirectory scratch(fs::temp_directory_path());
  const fs::path root = scratch.path() / "home";
  const std::string id = Home::open(root).host_id();
  CHECK(is_id_text(id));
  CHECK(Home::open(root).host_id() == id);
  write_file_atomic(root / "format", "99\n");
  CHECK_THROWS(Home::open(root));
}

}  // namespace
}  // namespace dsec::engine
