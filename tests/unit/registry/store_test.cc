#include "registry/store/local_store.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "core/base/error.h"
#include "tests/unit/registry/fixture.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a layer is found by tag, by digest and by prefix", "[registry][store]") {
  Scratch scratch;
  const auto added = put_layer(scratch.store, "base/debian", "12", "meta", "data");
  CHECK(added.tags == std::vector<std::string>{"base/debian:12"});
  CHECK(added.trusted);
  CHECK_FALSE(added.in_place);
  const std::string hex = added.digest.hex();
  for (const std::string& text : {std::string("base/debian:12"), "base/debian@sha256:" + hex, "sha256:" + hex,
                                  hex.substr(0, 4), "base/debian@sha256:" + hex.substr(0, 8)}) {
    INFO(text);
    const auto found = scratch.store.find(named(text));
    REQUIRE(found);
    CHECK(found->digest == added.digest);
    CHECK(found->manifest == added.manifest);
  }
  CHECK_FALSE(scratch.store.find(named("base/debian:13")));
  CHECK_FALSE(scratch.store.find(named("base/other@sha256:" + hex)));
  CHECK(scratch.store.list().size() == 1);
}

TEST_CASE("a wrong reference suggests the nearest names", "[registry][store]") {
  Scratch scratch;
  put_layer(scratch.store, "base/debian", "12", "meta", "data");
  try {
    scratch.store.get(named("base/debain:12"));
    FAIL("found");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.message(), Contains("no layer 'base/debain:12' in the store"));
    REQUIRE(error.hints().size() == 1);
    CHECK(error.hints()[0] == "base/debian:12");
  }
}

TEST_CASE("a prefix of several layers is refused with the candidates", "[registry][store]") {
  Scratch scratch;
  // Among 2000 digests two share one of the 65536 prefixes of 4 digits.
  std::map<std::string, int> seen;
  std::string shared;
  const auto session = scratch.store.begin_session();
  LayerManifest manifest = put_blobs(*session, "base/x", "m", "d");
  for (int i = 0; i < 2000 && shared.empty(); ++i) {
    manifest.config.workdir = "/" + std::to_string(i);
    const std::string prefix = manifest.digest().hex().substr(0, 4);
    if (++seen[prefix] == 2) shared = prefix;
  }
  REQUIRE_FALSE(shared.empty());
  for (int i = 0; i < 2000; ++i) {
    manifest.config.workdir = "/" + std::to_string(i);
    if (manifest.digest().hex().starts_with(shared))
      scratch.store.add(manifest, "t" + std::to_string(i), engine::Trust::BuiltHere, *session);
  }
  try {
    scratch.store.find(named(shared));
    FAIL("found");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(error.message(), Contains("ambiguous"));
    REQUIRE(error.hints().size() >= 2);
    CHECK_THAT(error.hints()[0], Contains("base/x@sha256:" + shared));
  }
}

TEST_CASE("a blob that comes twice is kept once and cannot be written", "[registry][store]") {
  Scratch scratch;
  const auto one = put_layer(scratch.store, "base/one", "latest", "meta 1", "same data");
  const fs::path blob = scratch.store.blob_path(Digest::of("same data"));
  struct stat before, after;
  REQUIRE(::stat(blob.c_str(), &before) == 0);
  CHECK((before.st_mode & 07777) == 0444);
  put_layer(scratch.store, "base/two", "latest", "meta 2", "same data");
  REQUIRE(::stat(blob.c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
  CHECK(temp_files_below(scratch.home.root()).empty());
  CHECK(files_below(scratch.store.blob_root()).size() == 4);  // two metas, one data, one chunks
}

TEST_CASE("a tag moves, goes, and keeps to its kind", "[registry][store]") {
  Scratch scratch;
  const auto one = put_layer(scratch.store, "base/x", "1", "meta 1", "data");
  const auto two = put_layer(scratch.store, "base/x", "2", "meta 2", "data");
  scratch.store.tag(two.digest, LayerName::parse("base/x"), "1");
  CHECK(scratch.store.get(named("base/x:1")).digest == two.digest);
  CHECK(scratch.store.get(named("base/x:1")).tags == std::vector<std::string>{"base/x:1", "base/x:2"});
  CHECK_THROWS_AS(scratch.store.tag(two.digest, LayerName::parse("toolkit/x"), "1"), Error);
  CHECK_THROWS_AS(scratch.store.tag(two.digest, LayerName::parse("base/x"), "-"), Error);
  CHECK_THROWS_AS(scratch.store.tag(Digest::of("no"), LayerName::parse("base/x"), "1"), Error);
  CHECK(scratch.store.untag(LayerName::parse("base/x"), "1"));
  CHECK_FALSE(scratch.store.untag(LayerName::parse("base/x"), "1"));
  CHECK(scratch.store.find(LayerRef::of(one.digest))->tags.empty());

  scratch.store.tag(two.digest, LayerName::parse("base/alias"), "x");
  const Removal removal = scratch.store.remove(LayerRef::of(two.digest));
  CHECK(removal.tags == std::vector<std::string>{"base/alias:x", "base/x:2"});
  CHECK(removal.untagged == two.digest);
}

TEST_CASE("labels are kept and replaced", "[registry][store]") {
  Scratch scratch;
  const auto session = scratch.store.begin_session();
  const LayerManifest manifest = put_blobs(*session, "base/x", "m", "d");
  scratch.store.add(manifest, "1", engine::Trust::Foreign, *session, {{"suite", "a"}, {"owner", "me"}});
  const auto stored = scratch.store.add(manifest, "", engine::Trust::Foreign, *session, {{"suite", "b"}});
  CHECK(stored.labels == std::map<std::string, std::string>{{"suite", "b"}, {"owner", "me"}});
  CHECK_FALSE(stored.trusted);
  scratch.store.mark_trusted(stored.digest);
  CHECK(scratch.store.get(named("base/x:1")).trusted);
}

TEST_CASE("a layer whose blobs the session does not hold is refused", "[registry][store]") {
  Scratch scratch;
  const auto session = scratch.store.begin_session();
  LayerManifest manifest = put_blobs(*session, "base/x", "m", "d");
  const auto other = scratch.store.begin_session();
  CHECK_THROWS_WITH(scratch.store.add(manifest, "1", engine::Trust::BuiltHere, *other),
                    Contains("not held") || Contains("cannot store"));
  manifest.images[0].blobs[0].size += 1;
  CHECK_THROWS_AS(scratch.store.add(manifest, "1", engine::Trust::BuiltHere, *session), Error);
  CHECK(scratch.store.list().empty());
}

TEST_CASE("confirming a layer that is gone says so", "[registry][store]") {
  Scratch scratch;
  const auto added = put_layer(scratch.store, "base/x", "1", "m", "d");
  const Digest gone = Digest::of("gone");
  scratch.store.confirm(std::vector<Digest>{added.digest});
  CHECK_THROWS_AS(scratch.store.confirm(std::vector<Digest>{added.digest, gone}), Error);
}

TEST_CASE("many threads and a forked child use one store", "[registry][store]") {
  Scratch scratch;
  put_layer(scratch.store, "base/seed", "1", "m", "d");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i)
        put_layer(scratch.store, "base/t" + std::to_string(t), std::to_string(i), "meta " + std::to_string(i), "same");
    });
  for (std::thread& thread : threads) thread.join();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      put_layer(scratch.store, "base/child", "1", "child", "same");
      ::_exit(scratch.store.list().size() == 22 ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(scratch.store.list().size() == 22);
  CHECK(scratch.store.get(named("base/child:1")).digest != Digest::of(""));
}

}  // namespace
}  // namespace dsec::registry::test
