#include "registry/publish.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/layout/layout.h"
#include "registry/pull.h"
#include "tests/unit/registry/fixture.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a published layer is pulled elsewhere with the same digest", "[registry][publish]") {
  Scratch from, to;
  const std::string data = random_bytes((5 << 20) + 4096, 1);
  const auto layer = put_layer(from.store, "base/library/debian", "12", "meta", data);
  const auto address = RegistryAddress::parse(from.registry_url());
  const PublishResult published = publish_refs(from.store, {"base/library/debian:12"}, address);
  REQUIRE(published.layers.size() == 1);
  CHECK(published.layers[0].digest == layer.digest);
  CHECK(published.bytes_copied == layer.manifest.total_size());
  CHECK(files_below(from.registry_path()).size() == 7);  // marker, three blobs, manifest, tag, catalogue
  CHECK(temp_files_below(from.registry_path()).empty());

  const PullResult pulled = pull_ref(to.store, "base/library/debian:12", address);
  CHECK(pulled.layer.digest == layer.digest);
  CHECK(pulled.layer.tags == std::vector<std::string>{"base/library/debian:12"});
  CHECK_FALSE(pulled.layer.trusted);
  CHECK(pulled.bytes_copied == layer.manifest.total_size());
  CHECK(read_file(to.store.blob_path(Digest::of(data))) == data);
  const PullResult again = pull_ref(to.store, "base/library/debian:12", address);
  CHECK(again.bytes_copied == 0);
  CHECK(again.bytes_present == layer.manifest.total_size());
}

TEST_CASE("a snapshot is published and pulled with all it stands on, which gets no tags", "[registry][publish]") {
  Scratch from, to;
  const auto base = put_layer(from.store, "base/b", "1", "m1", "d1");
  const auto below = put_layer(from.store, "snapshot/below", "1", "m2", "d2");
  {
    const auto session = from.store.begin_session();
    LayerManifest manifest = put_blobs(*session, "snapshot/s", "m3", "d3");
    manifest.lowers = {base.digest, below.digest};
    from.store.add(manifest, "1", engine::Trust::BuiltHere, *session);
  }
  const auto address = RegistryAddress::parse(from.registry_url());
  const PublishResult published = publish_refs(from.store, {"snapshot/s:1"}, address);
  REQUIRE(published.layers.size() == 3);
  CHECK(published.layers[0].digest == base.digest);
  CHECK(published.layers[2].ref == "snapshot/s:1");

  const PullResult pulled = pull_ref(to.store, "snapshot/s:1", address);
  CHECK(pulled.layer.manifest.lowers == std::vector<Digest>{base.digest, below.digest});
  CHECK(pulled.bytes_copied == published.bytes_copied);
  for (const auto& layer : {base, below}) CHECK(to.store.get(LayerRef::of(layer.digest)).tags.empty());
  CHECK(to.store.get(LayerRef::of(base.digest)).manifest.name.str() == "base/b");
  CHECK(pull_ref(to.store, "snapshot/s:1", address).bytes_copied == 0);
}

TEST_CASE("publishing twice copies nothing the second time and replaces no file", "[registry][publish]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  const auto address = RegistryAddress::parse(scratch.registry_url());
  publish_refs(scratch.store, {"base/x:1"}, address);
  const fs::path blob = scratch.registry_path() / blob_name(Digest::of("data"));
  struct stat before, after;
  REQUIRE(::stat(blob.c_str(), &before) == 0);
  CHECK((before.st_mode & 0222) == 0);
  const PublishResult again = publish_refs(scratch.store, {"base/x:1"}, address);
  CHECK(again.bytes_copied == 0);
  CHECK(again.bytes_present == 4 + 4 + 32);
  REQUIRE(::stat(blob.c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
}

TEST_CASE("publishing goes on where it was stopped", "[registry][publish]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  put_layer(scratch.store, "base/y", "1", "meta of y", "data");
  const auto address = RegistryAddress::parse(scratch.registry_url());
  publish_refs(scratch.store, {"base/x:1"}, address);
  const PublishResult rest = publish_refs(scratch.store, {"base/x:1", "base/y:1"}, address);
  CHECK(rest.bytes_copied == 9);
}

TEST_CASE("a directory with something else in it is not made a registry", "[registry][publish]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  fs::create_directory(scratch.registry_path());
  std::ofstream(scratch.registry_path() / "thesis.tex") << "x";
  CHECK_THROWS_WITH(publish_refs(scratch.store, {"base/x:1"}, RegistryAddress::parse(scratch.registry_url())),
                    Contains("cannot make registry"));
  CHECK(files_below(scratch.registry_path()) == std::vector<std::string>{"thesis.tex"});
  // Neither is one made for a layer that does not exist.
  CHECK_THROWS_AS(publish_refs(scratch.store, {"base/no:1"}, RegistryAddress::parse(scratch.registry_url("new"))),
                  Error);
  CHECK_FALSE(fs::exists(scratch.registry_path("new")));
}

TEST_CASE("a damaged blob of the store is not published", "[registry][publish]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  const fs::path blob = scratch.store.blob_file(Digest::of("data"));
  fs::permissions(blob, fs::perms::owner_write, fs::perm_options::add);
  std::ofstream(blob) << "DATA";
  const auto address = RegistryAddress::parse(scratch.registry_url());
  try {
    publish_refs(scratch.store, {"base/x:1"}, address);
    FAIL("published");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("the store's copy is damaged"));
  }
  CHECK_FALSE(fs::exists(scratch.registry_path() / blob_name(Digest::of("data"))));
  CHECK_FALSE(fs::exists(scratch.registry_path() / "tags"));
  CHECK(temp_files_below(scratch.registry_path()).empty());
  CHECK(files_below(scratch.registry_path() / "leases").empty());
}

TEST_CASE("a truncated or altered blob of the registry is told, not overwritten", "[registry][publish]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  const auto address = RegistryAddress::parse(scratch.registry_url());
  publish_refs(scratch.store, {"base/x:1"}, address);
  const fs::path blob = scratch.registry_path() / blob_name(Digest::of("data"));
  overwrite(blob, "DATA");
  CHECK(publish_refs(scratch.store, {"base/x:1"}, address).bytes_copied == 0);
  PublishOptions options;
  options.verify_existing = true;
  Progress quiet;
  const std::vector<LayerRef> refs = {named("base/x:1")};
  CHECK_THROWS_AS(publish(scratch.store, refs, address, options, quiet), Error);
  overwrite(blob, "dat");
  CHECK_THROWS_AS(publish_refs(scratch.store, {"base/x:1"}, address), Error);

  CheckOptions repair;
  repair.repair = true;
  const CheckResult check = check_registry(address, repair, quiet);
  REQUIRE(check.problems.size() == 2);
  CHECK(check.problems[1].kind == RegistryProblem::Kind::Missing);
  CHECK(check.problems[0].kind == RegistryProblem::Kind::Truncated);
  CHECK(check.problems[0].repaired);
  CHECK(publish_refs(scratch.store, {"base/x:1"}, address).bytes_copied == 4);
  CHECK(check_registry(address, {}, quiet).problems.empty());
}

TEST_CASE("a layer named by digest is published without a tag and pulled by digest", "[registry][publish]") {
  Scratch from, to;
  const auto layer = put_layer(from.store, "base/x", "1", "meta", "data");
  const auto address = RegistryAddress::parse(from.registry_url());
  publish_refs(from.store, {layer.digest.str()}, address);
  CHECK_FALSE(fs::exists(from.registry_path() / "tags"));
  for (const std::string& text :
       {layer.digest.str(), layer.digest.hex().substr(0, 8), "base/x@sha256:" + layer.digest.hex().substr(0, 4)})
    CHECK(pull_ref(to.store, text, address).layer.digest == layer.digest);
  CHECK(to.store.get(LayerRef::of(layer.digest)).tags.empty());
  CHECK_THROWS_AS(pull_ref(to.store, "base/y@" + layer.digest.hex().substr(0, 8), address), Error);
}

TEST_CASE("a tag that another layer is published under moves", "[registry][publish]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta one", "data");
  const auto address = RegistryAddress::parse(scratch.registry_url());
  publish_refs(scratch.store, {"base/x:1"}, address);
  const auto second = put_layer(scratch.store, "base/x", "1", "meta two", "data");
  publish_refs(scratch.store, {"base/x:1"}, address);
  Scratch to;
  CHECK(pull_ref(to.store, "base/x:1", address).layer.digest == second.digest);
}

TEST_CASE("a layer of an in-place registry keeps its data there", "[registry][in-place]") {
  Scratch from, to;
  put_layer(from.store, "base/x", "1", "meta", "the data");
  auto address = RegistryAddress::parse(from.registry_url());
  publish_refs(from.store, {"base/x:1"}, address);
  address.in_place = true;
  const PullResult pulled = pull_ref(to.store, "base/x:1", address);
  CHECK(pulled.bytes_in_place == 8);
  CHECK(pulled.bytes_copied == 4 + 32);
  CHECK(pulled.layer.in_place);
  const fs::path place = to.store.blob_path(Digest::of("the data"));
  CHECK(place == from.registry_path() / blob_name(Digest::of("the data")));
  CHECK(files_below(to.store.blob_root()).size() == 2);

  fs::remove(place);
  try {
    to.store.blob_path(Digest::of("the data"));
    FAIL("found");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("is not in the registry it is read from"));
  }
  publish_refs(from.store, {"base/x:1"}, address);
  // Pulling it whole later brings the data in.
  address.in_place = false;
  to.store.remove(named("base/x:1"));
  CHECK(pull_ref(to.store, "base/x:1", address).layer.in_place);
}

TEST_CASE("only 3FS readers wait for a name that is not there yet", "[registry][3fs]") {
  Scratch from, to;
  put_layer(from.store, "base/x", "1", "meta", "data");
  auto address = RegistryAddress::parse(from.registry_url());
  publish_refs(from.store, {"base/x:1"}, address);
  const fs::path tag = from.registry_path() / "tags/base/x/1", hidden = from.registry_path() / "hidden";
  const auto timed = [](const auto& action) {
    const auto start = std::chrono::steady_clock::now();
    action();
    return std::chrono::steady_clock::now() - start;
  };
  CHECK(timed([&] { CHECK_THROWS_AS(pull_ref(to.store, "base/x:2", address), Error); }) < std::chrono::seconds(3));

  address.kind = RegistryAddress::Kind::ThreeFs;
  CHECK_THROWS_AS(pull_ref(to.store, "base/x:1", address), Error);  // this is no 3FS
  address.allow_any_fs = true;
  fs::rename(tag, hidden);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    fs::rename(hidden, tag);
  });
  pull_ref(to.store, "base/x:1", address);
  later.join();
  CHECK(timed([&] { CHECK_THROWS_AS(pull_ref(to.store, "base/x:2", address), Error); }) > std::chrono::seconds(6));
}

}  // namespace
}  // namespace dsec::registry::test
