#include "registry/loader/chunk_source.h"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/unit/registry/kinds.h"

namespace dsec::registry {
namespace {

TEST_CASE("a registry that is slow to refuse is not asked as each of many callers", "[registry][loader]") {
  test::MemoryRegistry registry;
  std::atomic<int> asked = 0;
  registry.state().before = [&](const dsec::test::Seen&) {
    ++asked;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  const dsec::test::HttpServer server{registry};
  const auto source = registry_source([](const std::string&) {}, {.stall = std::chrono::milliseconds(1000)});
  for (int i = 0; i < 8; ++i) source->add_caller({{"AWS_PROFILE", std::to_string(i)}});
  const BlobOrigin origin{"oci://" + server.authority() + "/x"};
  const RemoteBlob blob{{BlobRole::Data, Digest::of("data"), 4}, Digest::of("chunks"), "base/x", {origin}};
  std::array<std::byte, 4> bytes;
  CHECK_THROWS_AS(source->read(origin, blob, 0, bytes), Error);
  CHECK(asked > 3);
  CHECK(asked < 20);
}

}  // namespace
}  // namespace dsec::registry
