#include "registry/loader/shared_state.h"

#include <catch2/catch.hpp>
#include <string>

namespace {

using dsec::Digest;
using dsec::registry::ServedName;
using dsec::registry::SharedState;

ServedName blob(int number) { return {Digest::of("blob " + std::to_string(number)), Digest::of("chunks")}; }

TEST_CASE("what the kernel knows blobs by outlives a server, however many there are", "[registry][loader]") {
  constexpr int kBlobs = 20'000;
  const dsec::UniqueFd memory = SharedState::make("test");
  {
    SharedState state(memory);
    for (int i = 0; i < kBlobs; ++i) {
      REQUIRE(state.inode_of(blob(i)) == i + 2u);
      state.add_fetched(i + 2u, static_cast<unsigned>(i));
    }
    CHECK(state.inode_of(blob(kBlobs / 2)) == kBlobs / 2 + 2u);
    CHECK(state.add_handle(SharedState::handle_for(1ull << 40, kBlobs + 1)));
  }
  SharedState state(memory);
  CHECK(state.inodes().size() == kBlobs);
  CHECK(state.inode_of(blob(kBlobs - 1)) == kBlobs + 1u);
  CHECK(state.inode_of(blob(kBlobs)) == kBlobs + 2u);
  CHECK(state.blob_of(kBlobs + 1) == blob(kBlobs - 1));
  CHECK_FALSE(state.blob_of(kBlobs + 3));
  CHECK(state.fetched(kBlobs + 1) == kBlobs - 1);
  CHECK(state.is_open(kBlobs + 1));
  CHECK_FALSE(state.is_open(kBlobs));
  state.drop_handle(SharedState::handle_for(1ull << 40, kBlobs + 1));
  CHECK(state.handles() == 0);
}

}  // namespace
