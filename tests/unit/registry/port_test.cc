// What every kind of registry does alike, behind the one port.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/registries.h"
#include "registry/registry.h"
#include "registry/store/chunk_digests.h"
#include "registry/sync.h"
#include "tests/support/http_server.h"
#include "tests/unit/registry/kinds.h"
#include "tests/unit/registry/registry_fixture.h"
#include "tests/unit/registry/web/web_servers.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

#define FOR_EACH_KIND() \
  Kinds kinds(GENERATE(std::string("file"), std::string("oci"), std::string("https"), std::string("s3")))

TEST_CASE("a layer comes out of any registry as it went in", "[registry][port]") {
  FOR_EACH_KIND();
  const auto layer = put_layer(kinds.from.store, "base/library/debian", "12", "meta", random_bytes(300'000, 1));
  CHECK(publish_refs(kinds.from.store, {"base/library/debian:12"}, kinds.address).bytes_copied ==
        layer.manifest.total_size());
  CHECK(publish_refs(kinds.from.store, {"base/library/debian:12"}, kinds.address).bytes_copied == 0);
  const PullResult pulled = pull_ref(kinds.to.store, "base/library/debian:12", kinds.readable);
  CHECK(pulled.layer.digest == layer.digest);
  CHECK(pulled.layer.tags == std::vector<std::string>{"base/library/debian:12"});
  CHECK_FALSE(pulled.layer.trusted);
  CHECK(pull_ref(kinds.to.store, "base/library/debian:12", kinds.readable).bytes_copied == 0);
}

TEST_CASE("a part of a blob comes out of any registry", "[registry][port]") {
  FOR_EACH_KIND();
  const std::string data = random_bytes(300'000, 1);
  put_layer(kinds.from.store, "base/x", "1", "meta", data);
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  const auto registry = open_registry(kinds.readable, OpenMode::Read, kinds.quiet);
  std::string part(70'000, 0);
  registry->read_range({BlobRole::Data, Digest::of(data), data.size()}, 200'000,
                       std::as_writable_bytes(std::span(part)));
  CHECK(part == data.substr(200'000, 70'000));
  CHECK_THROWS_AS(registry->read_range({BlobRole::Data, Digest::of("none"), 10}, 0,
                                       std::as_writable_bytes(std::span(part).first(10))),
                  Error);
}

TEST_CASE("parts of a blob are read from any registry by many at once", "[registry][port]") {
  FOR_EACH_KIND();
  const std::string data = random_bytes(300'000, 1);
  put_layer(kinds.from.store, "base/x", "1", "meta", data);
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  const auto registry = open_registry(kinds.readable, OpenMode::Read, kinds.quiet);
  std::string copy(data.size(), 0);
  constexpr std::size_t kPart = 30'000;
  std::atomic<int> failed = 0;
  std::vector<std::thread> readers;
  for (std::size_t at = 0; at < data.size(); at += kPart)
    readers.emplace_back([&, at] {
      try {
        registry->read_range({BlobRole::Data, Digest::of(data), data.size()}, at,
                             std::as_writable_bytes(std::span(copy).subspan(at, kPart)));
      } catch (const Error&) {
        ++failed;
      }
    });
  for (std::thread& reader : readers) reader.join();
  CHECK(failed == 0);
  CHECK(copy == data);
}

TEST_CASE("a prefetch list stands beside its layer in any registry, and can be replaced", "[registry][port]") {
  FOR_EACH_KIND();
  const auto layer = put_layer(kinds.from.store, "base/x", "1", "meta", random_bytes(9 * kChunkSize, 1));
  const Digest data = layer.manifest.images[0].blob(BlobRole::Data).digest;
  const auto there = [&] {
    return open_registry(kinds.readable, OpenMode::Read, kinds.quiet)->prefetch_list(layer.digest);
  };
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  CHECK_FALSE(there());
  for (const auto& runs : {std::vector<ChunkRun>{{4, 2}, {0, 1}}, std::vector<ChunkRun>{{7, 1}}}) {
    const PrefetchList list{layer.digest, {{data, runs}}};
    CHECK(publish_prefetch_list(kinds.from.store, list, kinds.address, kinds.quiet));
    CHECK(there() == list.text());
  }
  // The layer is what it was, and its tags are all there is to see.
  CHECK(registry_tags(kinds.readable, kinds.quiet).size() == 1);
  CHECK(open_registry(kinds.readable, OpenMode::Read, kinds.quiet)->resolve(named(layer.digest.hex().substr(0, 8))) ==
        layer.digest);
  const PullResult pulled = pull(kinds.to.store, named("base/x:1"), kinds.readable, kinds.quiet, PullMode::OnDemand);
  CHECK(pulled.layer.digest == layer.digest);
  const Digest chunks = layer.manifest.images[0].blob(BlobRole::Chunks).digest;
  CHECK(kinds.to.store.prefetch_list(data, chunks, 9) == std::vector<ChunkRun>{{7, 1}});
  // For another number of chunks it is none.
  CHECK(kinds.to.store.prefetch_list(data, chunks, 7).empty());
  CHECK_FALSE(publish_prefetch_list(kinds.from.store, {Digest::of("none"), {}}, kinds.address, kinds.quiet));
}

TEST_CASE("a prefetch list goes along with its layer to a registry that has none", "[registry][port]") {
  FOR_EACH_KIND();
  const auto layer = put_layer(kinds.from.store, "base/x", "1", "meta", random_bytes(9 * kChunkSize, 1));
  const Digest data = layer.manifest.images[0].blob(BlobRole::Data).digest;
  const PrefetchList kept{layer.digest, {{data, {{4, 2}, {0, 1}}}}}, newer{layer.digest, {{data, {{7, 1}}}}};
  const auto there = [&] {
    return open_registry(kinds.readable, OpenMode::Read, kinds.quiet)->prefetch_list(layer.digest);
  };
  kinds.from.store.keep_prefetch_list(kept, layer.manifest);
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  CHECK(there() == kept.text());
  CHECK(publish_prefetch_list(kinds.from.store, newer, kinds.address, kinds.quiet));
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  CHECK(there() == newer.text());
}

TEST_CASE("any registry keeps what a snapshot stands on with it", "[registry][port]") {
  FOR_EACH_KIND();
  const auto base = put_layer(kinds.from.store, "base/b", "1", "m1", "d1");
  {
    const auto session = kinds.from.store.begin_session();
    LayerManifest manifest = put_blobs(*session, "snapshot/s", "m3", "d3");
    manifest.lowers = {base.digest};
    kinds.from.store.add(manifest, "1", engine::Trust::BuiltHere, *session);
  }
  CHECK(publish_refs(kinds.from.store, {"snapshot/s:1"}, kinds.address).layers.size() == 2);
  CHECK(pull_ref(kinds.to.store, "snapshot/s:1", kinds.readable).layer.manifest.lowers == std::vector{base.digest});
  CHECK(kinds.to.store.get(LayerRef::of(base.digest)).tags.empty());
}

TEST_CASE("any registry finds a layer by its digest and by the beginning of it", "[registry][port]") {
  FOR_EACH_KIND();
  const auto layer = put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  publish_refs(kinds.from.store, {layer.digest.str()}, kinds.address);
  const auto registry = open_registry(kinds.readable, OpenMode::Read, kinds.quiet);
  CHECK(registry->resolve(LayerRef::of(layer.digest)) == layer.digest);
  CHECK(registry->resolve(named(layer.digest.hex().substr(0, 8))) == layer.digest);
  CHECK(registry->resolve(named("base/x@sha256:" + layer.digest.hex().substr(0, 8))) == layer.digest);
  CHECK_FALSE(registry->resolve(named("base/y@sha256:" + layer.digest.hex().substr(0, 8))));
  CHECK_FALSE(registry->resolve(LayerRef::of(Digest::of("nothing"))));
  CHECK_FALSE(registry->resolve(named("base/x:1")));
  CHECK(registry->tags({}).empty());
  CHECK(pull_ref(kinds.to.store, layer.digest.str(), kinds.readable).layer.tags.empty());
}

TEST_CASE("a tag of any registry moves, and its tags are listed", "[registry][port]") {
  FOR_EACH_KIND();
  put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  const auto second = put_layer(kinds.from.store, "base/x", "1", "other", "data");
  CHECK(publish_refs(kinds.from.store, {"base/x:1"}, kinds.address).bytes_copied == 5);
  put_layer(kinds.from.store, "toolkit/a/b", "2", "meta", "data");
  publish_refs(kinds.from.store, {"toolkit/a/b:2"}, kinds.address);
  const auto tags = registry_tags(kinds.readable, kinds.quiet);
  REQUIRE(tags.size() == 2);
  CHECK(tags[0].ref == "base/x:1");
  CHECK(tags[0].digest == second.digest);
  CHECK(tags[0].bytes == second.manifest.total_size());
  CHECK(tags[1].ref == "toolkit/a/b:2");
  CHECK(registry_tags(kinds.readable, kinds.quiet, LayerName::parse("toolkit/a/b")).size() == 1);
  CHECK(registry_tags(kinds.readable, kinds.quiet, LayerName::parse("toolkit/a")).empty());
}

TEST_CASE("any registry answers a wrong name with the nearest", "[registry][port]") {
  FOR_EACH_KIND();
  put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  try {
    pull_ref(kinds.to.store, "base/x:2", kinds.readable);
    FAIL("pulled");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.message(), Contains("no layer 'base/x:2' in registry"));
    CHECK(error.hints()[0] == "base/x:1");
  }
}

TEST_CASE("what is missing is pulled from any registry before a run", "[registry][port]") {
  FOR_EACH_KIND();
  const auto layer = put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  const std::vector<LayerRef> refs = {named("base/x:1")};
  const std::vector<RegistryAddress> asked = {RegistryAddress::parse("file:///no/such/registry"), kinds.readable};
  const auto found = ensure_local(kinds.to.store, refs, asked, kinds.quiet);
  REQUIRE(found.size() == 1);
  CHECK(found[0].digest == layer.digest);
}

TEST_CASE("a damaged blob of the store goes into no registry", "[registry][port]") {
  FOR_EACH_KIND();
  put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  overwrite(kinds.from.store.blob_file(Digest::of("data")), "DATA");
  try {
    publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
    FAIL("published");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("the store's copy is damaged"));
  }
  CHECK_FALSE(open_registry(kinds.readable, OpenMode::Read, kinds.quiet)->resolve(named("base/x:1")));
}

TEST_CASE("everything of any registry goes into any other, and is there once", "[registry][port]") {
  const std::string source = GENERATE(std::string("file"), std::string("oci"), std::string("https"), std::string("s3"));
  const std::string target = GENERATE(std::string("file"), std::string("oci"), std::string("s3"));
  Kinds kinds(source);
  put_layer(kinds.from.store, "base/x", "1", "meta", random_bytes(300'000, 1));
  kinds.from.store.tag(kinds.from.store.get(named("base/x:1")).digest, LayerName::parse("base/x"), "2");
  const auto loose = put_layer(kinds.from.store, "base/y", "1", "meta of y", "data");
  publish_refs(kinds.from.store, {"base/x:1", "base/x:2", loose.digest.str()}, kinds.address);
  const RegistryAddress to = kinds.another(target, "other");
  const auto sync = [&] { return sync_registries(kinds.readable, to, {}, {}, kinds.to.home, kinds.quiet); };
  const PublishResult first = sync();
  CHECK(first.layers.size() == 2);
  CHECK(first.bytes_copied > 300'000);
  CHECK(sync().bytes_copied == 0);
  const auto tags = registry_tags(to, kinds.quiet);
  REQUIRE(tags.size() == 2);
  CHECK(tags[0].digest == tags[1].digest);
  CHECK(pull_ref(kinds.to.store, loose.digest.str(), to).layer.tags.empty());
  CHECK(check_registry(to, {}, kinds.quiet).problems.empty());
  CHECK(temp_files_below(kinds.to.home.root()).empty());
}

TEST_CASE("a sync tells all that is missing before it copies anything", "[registry][port]") {
  Kinds kinds("file");
  put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  publish_refs(kinds.from.store, {"base/x:1"}, kinds.address);
  Lock lock;
  lock.layers.insert_or_assign("base/z:1", LockedLayer{Digest::of("gone"), {}, ""});
  const std::vector<LayerRef> refs = {named("base/x:1"), named("base/y:1")};
  const RegistryAddress to = kinds.another("file", "other");
  try {
    sync_registries(kinds.address, to, refs, std::vector{lock}, kinds.to.home, kinds.quiet);
    FAIL("synced");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.message(), Contains("no layer 'base/y:1'") && Contains(Digest::of("gone").hex()));
  }
  CHECK_FALSE(fs::exists(kinds.from.registry_path("other")));
  CHECK_THAT(told([&] { sync_registries(kinds.address, kinds.address, {}, {}, kinds.to.home, kinds.quiet); }),
             Contains("the same registry"));
}

TEST_CASE("a lock keeps the tags that still mean its layers", "[registry][port]") {
  Kinds kinds("file");
  const auto x = put_layer(kinds.from.store, "base/x", "1", "meta", "data");
  const auto y = put_layer(kinds.from.store, "base/y", "1", "meta of y", "data");
  publish_refs(kinds.from.store, {"base/x:1", "base/y:1"}, kinds.address);
  put_layer(kinds.from.store, "base/y", "1", "newer meta of y", "data");
  publish_refs(kinds.from.store, {"base/y:1"}, kinds.address);
  Lock lock;
  lock.layers.insert_or_assign("base/x:1", LockedLayer{x.digest, {}, ""});
  lock.environments["e"] = {x.digest, y.digest};
  lock.layers.insert_or_assign("base/y:1", LockedLayer{y.digest, {}, ""});
  const RegistryAddress to = kinds.another("oci", "other");
  CHECK(sync_registries(kinds.address, to, {}, std::vector{lock}, kinds.to.home, kinds.quiet).layers.size() == 2);
  const auto tags = registry_tags(to, kinds.quiet);
  REQUIRE(tags.size() == 1);
  CHECK(tags[0].ref == "base/x:1");
  CHECK(open_registry(to, OpenMode::Read, kinds.quiet)->resolve(LayerRef::of(y.digest)) == y.digest);
}

}  // namespace
}  // namespace dsec::registry::test
