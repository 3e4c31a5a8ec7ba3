#include "registry/gc/gc.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"
#include "registry/gc/leftovers.h"
#include "tests/unit/registry/failing_readdir.h"
#include "tests/unit/registry/fixture.h"

namespace dsec::registry::test {
namespace {

std::size_t count(const GcResult& result, GcItem::Kind kind) {
  return static_cast<std::size_t>(std::count_if(result.removed.begin(), result.removed.end(),
                                                [&](const GcItem& item) { return item.kind == kind; }));
}

GcResult collect(LocalStore& store) { return collect_garbage(store, {}, false); }

std::string put_lease(const engine::Home& home, const std::vector<Digest>& layers) {
  engine::Lease lease;
  lease.id = engine::random_id(22);
  lease.creator = engine::ProcessIdentity::self();
  lease.spec.layers = layers;
  fs::create_directory(home.sandboxes() / lease.id);
  lease.write(home.sandboxes() / lease.id);
  return lease.id;
}

TEST_CASE("gc keeps all that a snapshot stands on, as long as something names the snapshot", "[registry][gc]") {
  Scratch scratch;
  LocalStore& store = scratch.store;
  const auto base = put_layer(store, "base/b", "", "m1", "d1");
  const auto toolkit = put_layer(store, "toolkit/t", "", "m2", "d2");
  engine::StoredLayer made = base;
  {
    const auto session = store.begin_session();
    LayerManifest manifest = put_blobs(*session, "snapshot/s", "m3", "d3");
    manifest.lowers = {base.digest, toolkit.digest};
    made = store.add(manifest, "1", engine::Trust::BuiltHere, *session);
  }
  CHECK(collect(store).removed.empty());
  store.untag(LayerName::parse("snapshot/s"), "1");
  const std::string id = put_lease(scratch.home, {made.digest});
  CHECK(collect(store).removed.empty());
  fs::remove_all(scratch.home.sandboxes() / id);
  CHECK(count(collect(store), GcItem::Kind::Layer) == 3);
  CHECK(store.list().empty());
}

TEST_CASE("gc keeps what a tag, a lease, a lock or a layer built on it names, and takes the rest", "[registry][gc]") {
  Scratch scratch;
  LocalStore& store = scratch.store;
  put_layer(store, "base/tagged", "1", "m1", "d1");
  const auto leased = put_layer(store, "base/leased", "", "m2", "d2");
  const auto locked = put_layer(store, "base/locked", "", "m3", "d3");
  const auto below = put_layer(store, "base/below", "", "m4", "d4");
  const auto loose = put_layer(store, "base/loose", "", "m5", "d5");
  {
    const auto session = store.begin_session();
    LayerManifest manifest = put_blobs(*session, "workspace/built", "m6", "d6");
    manifest.provenance.built_on = below.digest;
    store.add(manifest, "1", engine::Trust::BuiltHere, *session);
  }
  const std::string id = put_lease(scratch.home, {leased.digest});
  const fs::path lock = scratch.directory.path() / "dsec.lock";
  std::ofstream(lock) << "locked";
  store.register_lock(lock, std::vector<Digest>{locked.digest, Digest::of("never stored")});

  const GcResult dry = collect_garbage(store, {}, true);
  CHECK(count(dry, GcItem::Kind::Layer) == 1);
  CHECK(count(dry, GcItem::Kind::Blob) == 3);
  CHECK(store.list().size() == 6);

  const GcResult first = collect(store);
  CHECK(first.warnings.empty());
  CHECK(count(first, GcItem::Kind::Layer) == 1);
  CHECK(count(first, GcItem::Kind::Blob) == 3);
  CHECK(first.bytes == dry.bytes);
  CHECK(first.bytes > 0);
  CHECK_FALSE(store.find(LayerRef::of(loose.digest)));
  CHECK_FALSE(store.has_blob(Digest::of("m5")));
  CHECK(store.list().size() == 5);
  CHECK(collect(store).removed.empty());

  fs::remove(lock);
  fs::remove_all(scratch.home.sandboxes() / id);
  store.untag(LayerName::parse("workspace/built"), "1");
  const GcResult last = collect(store);
  CHECK(count(last, GcItem::Kind::Lock) == 1);
  CHECK(count(last, GcItem::Kind::Layer) == 4);
  CHECK(store.list().size() == 1);
  CHECK(files_below(store.blob_root()).size() == 3);
  CHECK(store.get(named("base/tagged:1")).manifest.name.name == "tagged");
}

TEST_CASE("gc leaves the blobs and layers of a live session alone", "[registry][gc]") {
  Scratch scratch;
  auto session = scratch.store.begin_session();
  const LayerManifest manifest = put_blobs(*session, "base/x", "meta", "data");
  TempFile half = session->new_file();
  const auto intermediate = scratch.store.add(manifest, "", engine::Trust::BuiltHere, *session);
  CHECK(collect(scratch.store).removed.empty());
  CHECK(fs::exists(half.path()));
  CHECK(scratch.store.find(LayerRef::of(intermediate.digest)));
  session.reset();
  const GcResult result = collect(scratch.store);
  CHECK(count(result, GcItem::Kind::Layer) == 1);
  CHECK(count(result, GcItem::Kind::Blob) == 3);
  CHECK(fs::exists(half.path()));
}

TEST_CASE("gc sweeps the session and the files of a killed process", "[registry][gc]") {
  Scratch scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto session = scratch.store.begin_session();
    put_blobs(*session, "base/x", "meta", "data");
    const TempFile half = session->new_file();
    write_all(half.fd(), random_bytes(100000, 1));
    const TempDirectory directory(scratch.home.cache());
    std::ofstream(directory.path() / "part") << "part";
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(temp_files_below(scratch.home.root()).size() == 2);
  const GcResult result = collect(scratch.store);
  CHECK(count(result, GcItem::Kind::Session) == 1);
  CHECK(count(result, GcItem::Kind::Blob) == 3);
  CHECK(count(result, GcItem::Kind::Leftover) == 2);
  CHECK(temp_files_below(scratch.home.root()).empty());
  CHECK(files_below(scratch.store.blob_root()).empty());
  CHECK(collect(scratch.store).removed.empty());
}

TEST_CASE("gc removes blob files that the index does not know", "[registry][gc]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "1", "meta", "data");
  const fs::path stray = scratch.store.blob_file(Digest::of("stray"));
  fs::create_directories(stray.parent_path());
  std::ofstream(stray) << "stray";
  CHECK(count(collect(scratch.store), GcItem::Kind::Blob) == 1);
  CHECK_FALSE(fs::exists(stray));
  CHECK(files_below(scratch.store.blob_root()).size() == 3);
}

TEST_CASE("a lease that cannot be read keeps every layer", "[registry][gc]") {
  Scratch scratch;
  put_layer(scratch.store, "base/x", "", "meta", "data");
  const fs::path sandbox = scratch.home.sandboxes() / engine::random_id(22);
  fs::create_directory(sandbox);
  std::ofstream(sandbox / "lease.json") << "{";
  const GcResult result = collect(scratch.store);
  CHECK(result.removed.empty());
  REQUIRE(result.warnings.size() == 1);
  CHECK_THAT(result.warnings[0], Catch::Contains("no layer is removed while a lease cannot be read"));
}

TEST_CASE("every layer stays while it cannot be listed which sandboxes and trajectories there are", "[registry][gc]") {
  Scratch scratch;
  const auto leased = put_layer(scratch.store, "base/x", "", "meta", "data");
  put_lease(scratch.home, {leased.digest});
  const fs::path place = GENERATE(true, false) ? scratch.home.sandboxes() : scratch.home.trajectories();
  const fs::path aside = scratch.directory.path() / "aside";
  fs::rename(scratch.home.sandboxes(), aside);
  fs::create_directory(scratch.home.sandboxes());
  fs::create_directories(scratch.home.trajectories());
  {
    const FailingReaddir failing(place.native(), 0);
    CHECK_THAT(collect(scratch.store).warnings.at(0), Catch::Contains("EIO"));
  }
  fs::remove_all(place);
  std::ofstream(place) << "no directory";
  const GcResult result = collect(scratch.store);
  CHECK(result.removed.empty());
  CHECK_THAT(result.warnings.at(0), Catch::Contains("no layer is removed") && Catch::Contains("ENOTDIR"));
  fs::remove(place);
  fs::create_directory(place);
  fs::remove(scratch.home.sandboxes());
  fs::rename(aside, scratch.home.sandboxes());
  CHECK(scratch.store.find(LayerRef::of(leased.digest)));
  CHECK(collect(scratch.store).removed.empty());
}

TEST_CASE("names inside a sandbox's writable layer are none of gc's business", "[registry][gc]") {
  Scratch scratch;
  const std::string id = put_lease(scratch.home, {});
  const std::string dead = ".tmp-1-1-abcdef";
  fs::create_directory(scratch.home.sandboxes() / id / "upper");
  std::ofstream(scratch.home.sandboxes() / id / "upper" / dead) << "theirs";
  std::ofstream(scratch.home.sandboxes() / id / dead) << "ours";
  CHECK(find_leftovers(scratch.home) == std::vector<fs::path>{scratch.home.sandboxes() / id / dead});
}

TEST_CASE("gc tells the mounter which images sandboxes need, and names what it reclaimed", "[registry][gc]") {
  Scratch scratch;
  const auto leased = put_layer(scratch.store, "base/leased", "1", "m1", "d1");
  put_layer(scratch.store, "base/idle", "1", "m2", "d2");
  put_lease(scratch.home, {leased.digest});
  std::vector<Digest> needed;
  GcPorts ports;
  ports.unmount_unused = [&](std::span<const Digest> digests) {
    needed.assign(digests.begin(), digests.end());
    return std::size_t{1};
  };
  ports.reclaim_sandboxes = [](bool, std::vector<std::string>& warnings) {
    warnings.push_back("one is left");
    return std::vector<std::string>{"dead"};
  };
  const GcResult result = collect_garbage(scratch.store, ports, false);
  CHECK(result.unmounted == 1);
  CHECK(needed == std::vector<Digest>{Digest::of("m1")});
  CHECK(count(result, GcItem::Kind::Sandbox) == 1);
  CHECK(result.warnings == std::vector<std::string>{"one is left"});
}

}  // namespace
}  // namespace dsec::registry::test
