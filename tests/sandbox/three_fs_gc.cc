// gc of a registry on a filesystem that behaves like a 3FS client: what other hosts do meanwhile, which this one is
// told late.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/collect/collect.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"
#include "registry/pull.h"
#include "registry/registry.h"
#include "tests/support/skip.h"
#include "tests/support/three_fs_cluster.h"

using namespace dsec;
using namespace dsec::registry;
using Catch::Matchers::Contains;
using dsec::registry::test::Cluster;
using dsec::registry::test::has_fuse;
using std::chrono::seconds;
namespace fs = std::filesystem;

namespace {

/// base/x:1 is published, and means another layer than before.
struct Moved : Cluster {
  Digest old = published("old data"), now = published("new data");

  Digest published(const std::string& data) {
    put("base/x", data);
    publish_to(address, {LayerRef::parse("base/x:1")});
    return store.find(LayerRef::parse("base/x:1"))->digest;
  }
  CollectResult collect(seconds settle = seconds(0)) {
    return collect_registry(address, "abcdef", {.grace = seconds(0), .settle = settle}, warnings);
  }
  fs::path below(const std::string& name) const { return mount_point / "layers" / name; }
  bool is_there(const std::string& name) {
    for (const auto& entry : fs::directory_iterator(below(name).parent_path()))
      if (entry.path() == below(name)) return true;
    return false;
  }
  /// What another host does, which this one has looked for a moment before.
  void tag_elsewhere(const std::string& tag, const Digest& layer) {
    const std::string name = "tags/base/x/" + tag;
    CHECK_FALSE(fs::exists(below(name)));
    three_fs.put_from_elsewhere("layers/" + name, layer.str() + "\n");
    CHECK_FALSE(fs::exists(below(name)));  // remembered
  }
  void lease_elsewhere(const Digest& layer) {
    three_fs.put_from_elsewhere("layers/leases/other1-x.json",
                                R"({"schema":1,"boot_id":"other","pid":1,"start_ticks":1,"pid_namespace":"",)"
                                R"("expires":9999999999,"blobs":[")" +
                                    layer.hex() + "\"]}\n");
  }
};

}  // namespace

TEST_CASE("gc on 3FS removes what has no name, by means that 3FS has", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Moved cluster;
  const std::size_t replaced = cluster.three_fs.replaced().size();
  const CollectResult result = cluster.collect();
  CHECK(result.warnings.empty());
  REQUIRE(result.removed.size() == 2);
  CHECK(result.removed[0].name == "base/x " + cluster.old.brief());
  CHECK(result.removed[1].name == Digest::of("old data").str());
  CHECK(result.bytes == 8);
  CHECK_FALSE(cluster.is_there(manifest_name(cluster.old)));
  CHECK_FALSE(cluster.is_there(blob_name(Digest::of("old data"))));
  CHECK(check_registry(cluster.address, {}, cluster.warnings).problems.empty());
  CHECK(cluster.three_fs.refused().empty());
  CHECK(cluster.three_fs.strayed().empty());
  // Nothing but what tells of the registry as a whole.
  std::vector<std::string> names = cluster.three_fs.replaced();
  names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(replaced));
  CHECK(names == std::vector<std::string>{std::string(kCatalogue)});
  // It comes back by publishing it again, although the client here knows the names as missing.
  cluster.publish_to(cluster.address, {LayerRef::of(cluster.old)});
  const engine::Home other = engine::Home::open(cluster.directory.path() / "other");
  LocalStore store(other);
  CHECK(pull(store, LayerRef::of(cluster.old), cluster.address, cluster.warnings).layer.digest == cluster.old);
}

TEST_CASE("gc on 3FS sees a tag that its client remembers as missing", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Moved cluster;
  SECTION("before it looks") {
    cluster.tag_elsewhere("late", cluster.old);
    CHECK(cluster.collect().removed.empty());
  }
  SECTION("in a directory that it remembers as missing") {
    CHECK_FALSE(fs::exists(cluster.below("tags/base/y")));
    cluster.three_fs.put_from_elsewhere("layers/tags/base/y/1", cluster.old.str() + "\n");
    CHECK_FALSE(fs::exists(cluster.below("tags/base/y")));
    CHECK(cluster.collect().removed.empty());
  }
  SECTION("while it waits for what others have not seen") {
    std::thread publisher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      cluster.tag_elsewhere("late", cluster.old);
    });
    CHECK(cluster.collect(seconds(3)).removed.empty());
    publisher.join();
  }
  CHECK(cluster.is_there(manifest_name(cluster.old)));
  CHECK(cluster.is_there(blob_name(Digest::of("old data"))));
}

TEST_CASE("gc on 3FS keeps what a publisher of another host announces while it waits", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Moved cluster;
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    cluster.lease_elsewhere(cluster.old);
  });
  CHECK(cluster.collect(seconds(3)).removed.empty());
  publisher.join();
  CHECK(cluster.is_there(manifest_name(cluster.old)));
  // A lease that is renewed has another file, and its name is known here as that of the one before.
  cluster.lease_elsewhere(cluster.old);
  CHECK(cluster.collect().removed.empty());
  cluster.three_fs.remove_from_elsewhere("layers/leases/other1-x.json");
  CHECK(cluster.collect(seconds(1)).removed.size() == 2);
}

TEST_CASE("gc on 3FS waits for what others may remember, by default longer than they do", "[sandbox][3fs]") {
  CHECK(CollectOptions().settle > kThreeFsKnowsName);
}

TEST_CASE("gc on 3FS removes nothing when chunks of a manifest or a tag are lost", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Moved cluster;
  const bool of_tag = GENERATE(true, false);
  cluster.three_fs.lose("layers/" + (of_tag ? std::string("tags/base/x/1") : manifest_name(cluster.now)), 0, 1000);
  const CollectResult result = cluster.collect();
  CHECK(result.removed.empty());
  REQUIRE(result.warnings.size() == 1);
  CHECK_THAT(result.warnings[0], Contains(of_tag ? "a tag that cannot be read" : "a manifest that cannot be read"));
  CHECK(cluster.is_there(blob_name(Digest::of("old data"))));
}

TEST_CASE("gc on 3FS goes on where another one has removed a layer that it had listed", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Moved cluster;
  // The names are known here, and their files are gone.
  CHECK(fs::exists(cluster.below(manifest_name(cluster.old))));
  CHECK(fs::exists(cluster.below(blob_name(Digest::of("old data")))));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    cluster.three_fs.remove_from_elsewhere("layers/" + manifest_name(cluster.old));
    cluster.three_fs.remove_from_elsewhere("layers/" + blob_name(Digest::of("old data")));
  });
  const CollectResult result = cluster.collect(seconds(2));
  other.join();
  CHECK(result.warnings.empty());
  CHECK(result.removed.empty());
  CHECK(result.layers == 1);
  CHECK(check_registry(cluster.address, {}, cluster.warnings).problems.empty());
}
