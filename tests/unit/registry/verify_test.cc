#include "registry/store/verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/engine/mapped_blob.h"
#include "registry/gc/gc.h"
#include "registry/store/disk_use.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

VerifyResult verify(LocalStore& store, const std::vector<Digest>& layers = {}) {
  Progress quiet;
  return verify_store(store, layers, quiet);
}

TEST_CASE("a store that is whole verifies", "[registry][verify]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta 1", random_bytes(3 << 20, 1));
  put_layer(scratch.store, "base/y", "1", "meta 2", random_bytes((256 << 10) + 1, 2));
  put_layer(scratch.store, "base/z", "1", "meta 3", "");
  const VerifyResult result = verify(scratch.store);
  CHECK(result.problems.empty());
  CHECK(result.layers == 3);
  CHECK(result.blobs == 8);  // the chunks of no data are the same bytes as the data
}

TEST_CASE("verification names each missing, truncated and altered blob", "[registry][verify]") {
  Scratch scratch;
  const auto layer = put_layer(scratch.store, "base/x", "1", "metadata", "data");
  const auto other = put_layer(scratch.store, "base/y", "1", "meta 2", "data 2");
  overwrite(scratch.store.blob_file(Digest::of("metadata")), "METADATA");
  overwrite(scratch.store.blob_file(Digest::of("data")), "dat");
  fs::remove(scratch.store.blob_file(layer.manifest.images[0].blob(BlobRole::Chunks).digest));
  const VerifyResult result = verify(scratch.store);
  REQUIRE(result.problems.size() == 3);
  CHECK_THAT(result.problems[0].what, Contains("has other bytes: sha256:"));
  CHECK_THAT(result.problems[1].what, Contains("has 3 bytes instead of 4"));
  CHECK_THAT(result.problems[2].what, Contains("is not in the store"));
  for (const StoreProblem& problem : result.problems) CHECK_THAT(problem.layer, Contains("base/x"));
  CHECK(verify(scratch.store, {other.digest}).problems.empty());

  // Bringing the same bytes in again mends it.
  put_layer(scratch.store, "base/x", "1", "metadata", "data");
  CHECK(verify(scratch.store).problems.empty());
}

TEST_CASE("a blob that the memory of guests can map ends with a hole, and is the same blob", "[registry][verify]") {
  Scratch scratch;
  const std::string data = random_bytes((2 << 20) + 4096, 7);
  const auto layer = put_layer(scratch.store, "base/x", "1", "meta 1", data);
  const std::uint64_t used = disk_use(scratch.store).layers_bytes;
  for (const BlobRole role : {BlobRole::Meta, BlobRole::Data}) {
    const Blob& blob = layer.manifest.images[0].blob(role);
    fs::resize_file(scratch.store.blob_file(blob.digest), engine::mapped_size(blob.size));
  }
  CHECK(verify(scratch.store).problems.empty());
  CHECK(disk_use(scratch.store).layers_bytes == used);
  // Nor does it come in again when it is there.
  const fs::path file = scratch.store.blob_file(Digest::of(data));
  const auto before = fs::last_write_time(file);
  put_layer(scratch.store, "base/y", "1", "meta 2", data);
  CHECK(fs::last_write_time(file) == before);
  fs::permissions(file, fs::perms(0644));
  {
    const UniqueFd open = open_file(file, O_WRONLY);
    CHECK(::pwrite(open.get(), "x", 1, (4 << 20) - 1) == 1);
  }
  const VerifyResult result = verify(scratch.store);
  REQUIRE_FALSE(result.problems.empty());
  CHECK_THAT(result.problems[0].what, Contains("has 4194304 bytes instead of 2101248"));
}

TEST_CASE("chunk digests that do not fit the data are found", "[registry][verify]") {
  Scratch scratch;
  const auto session = scratch.store.begin_session();
  LayerManifest manifest = put_blobs(*session, "base/x", "meta", "data");
  TempFile file = session->new_file();
  write_all(file.fd(), std::string(32, 'x'));
  manifest.images[0].blobs[2] = session->adopt(std::move(file), BlobRole::Chunks);
  scratch.store.add(manifest, "1", engine::Trust::Foreign, *session);
  const VerifyResult result = verify(scratch.store);
  REQUIRE(result.problems.size() == 1);
  CHECK_THAT(result.problems[0].what, Contains("does not fit the data"));
}

TEST_CASE("disk use tells what is shared and what removing a layer would free", "[registry][df]") {
  Scratch scratch;
  const std::string data = random_bytes(100'000, 1);
  put_layer(scratch.store, "base/x", "1", "meta 1", data);
  put_layer(scratch.store, "base/y", "1", "meta two", data);
  put_layer(scratch.store, "base/z", "", "meta three", "own data");
  const DiskUse use = disk_use(scratch.store);
  REQUIRE(use.layers.size() == 3);
  CHECK(use.layers[0].name == "base/x");
  CHECK(use.layers[0].exclusive == 6);
  CHECK(use.layers[0].shared == 100'064);
  CHECK(use.layers[0].bytes == 100'070);
  CHECK_FALSE(use.layers[0].reclaimable);
  CHECK(use.layers[2].exclusive == 10 + 8 + 32);
  CHECK(use.layers[2].reclaimable);
  CHECK(use.layers_bytes == 100'064 + 6 + 8 + 10 + 8 + 32);
  CHECK(use.reclaimable_bytes == 50);
  CHECK(use.index_bytes > 0);
}

}  // namespace
}  // namespace dsec::registry::test
