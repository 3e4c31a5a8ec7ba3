// Registries on a filesystem that behaves like a 3FS client. What only a cluster shows (storage, other clients' caches,
// failover) is not tested here.
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "registry/check.h"
#include "registry/directory/directory_notes.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"
#include "registry/layout/publisher_lease.h"
#include "registry/pull.h"
#include "tests/support/skip.h"
#include "tests/support/three_fs_cluster.h"

using namespace dsec;
using namespace dsec::registry;
using Catch::Matchers::Contains;
using dsec::registry::test::Cluster;
using dsec::registry::test::has_fuse;
namespace fs = std::filesystem;

namespace {

std::string problems(Cluster& cluster) {
  std::string text;
  for (const RegistryProblem& problem : check_registry(cluster.address, {}, cluster.warnings).problems)
    text += problem.path + " " + problem.what + "; ";
  return text;
}

const std::string kData(5'000'000, 'd');

}  // namespace

TEST_CASE("3FS is recognised by its mount and by what its client answers", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  CHECK(is_three_fs(cluster.mount_point));
  CHECK(is_three_fs(cluster.mount_point / "not/there/yet"));
  CHECK_FALSE(is_three_fs(cluster.directory.path()));
  cluster.three_fs.answers_magic = false;
  CHECK_FALSE(is_three_fs(cluster.mount_point));
}

TEST_CASE("publishing to 3FS uses nothing that 3FS has not, and replaces no name but a tag", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData + "more");
  CHECK(cluster.publish_all(cluster.address).bytes_copied > 10'000'000);
  CHECK(cluster.publish_all(cluster.address).bytes_copied == 0);
  CHECK(problems(cluster) == "");
  CHECK(cluster.three_fs.refused().empty());
  // A file's chunks are laid out as the directory says that it was made in.
  CHECK(cluster.three_fs.strayed().empty());
  CHECK(cluster.three_fs.replaced() == std::vector<std::string>{"1", "1"});

  const engine::Home other = engine::Home::open(cluster.directory.path() / "other");
  LocalStore store(other);
  const PullResult pulled = pull(store, LayerRef::parse("base/y:1"), cluster.address, cluster.warnings);
  CHECK(pulled.bytes_copied == kData.size() + 4 + 14);
  CHECK(read_file(store.blob_path(Digest::of(kData + "more"))) == kData + "more");
}

TEST_CASE("a reader that looked too early finds what another host has published", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData);
  // Published elsewhere: on this host the kernel learns nothing of it.
  const fs::path elsewhere = cluster.directory.path() / "elsewhere";
  cluster.publish_all(RegistryAddress::parse("file://" + elsewhere.native()));
  cluster.three_fs.put_from_elsewhere("layers/dsec-registry.json", read_file(elsewhere / "dsec-registry.json"));

  const engine::Home other = engine::Home::open(cluster.directory.path() / "other");
  LocalStore store(other);
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (const auto& entry : fs::recursive_directory_iterator(elsewhere))
      if (entry.is_regular_file() && entry.path().filename() != "dsec-registry.json")
        cluster.three_fs.put_from_elsewhere("layers" / entry.path().lexically_relative(elsewhere),
                                            read_file(entry.path()));
  });
  const auto start = std::chrono::steady_clock::now();
  const PullResult pulled = pull(store, LayerRef::parse("base/x:1"), cluster.address, cluster.warnings);
  publisher.join();
  CHECK(pulled.layer.tags == std::vector<std::string>{"base/x:1"});
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::seconds(4));
}

TEST_CASE("a lease outlives what 3FS keeps of removed files, and what its clients remember", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData);
  cluster.publish_all(cluster.address);
  const RegistryRoot root = RegistryRoot::open(cluster.address);
  const DirectoryNotes notes(root);
  const PublisherLease lease(notes, "host", {Digest::of(kData)});
  const Json record =
      parse_json(read_file(cluster.mount_point / "layers/leases" / (lease.publisher() + ".json")), "it");
  const auto left =
      std::chrono::seconds(json_u64(record, "expires")) - std::chrono::system_clock::now().time_since_epoch();
  CHECK(left > kThreeFsKeepsRemoved + kThreeFsKnowsName + std::chrono::minutes(10));
}

TEST_CASE("repair on 3FS puts back what a publisher announced who was shown a name that is gone", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  for (const bool announced : {true, false}) {
    Cluster cluster;
    cluster.put("base/x", kData);
    cluster.put("base/y", kData);
    cluster.publish_all(cluster.address);
    const std::string blob = blob_name(Digest::of("loose"));
    cluster.three_fs.put_from_elsewhere(fs::path("layers") / blob, "loose");  // very old
    std::thread publisher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      if (!announced) return;
      // Another host looks at what it knows of the directory only after its lease is there.
      cluster.three_fs.put_from_elsewhere("layers/leases/other-1.json",
                                          R"({"schema":1,"boot_id":"other","pid":1,"start_ticks":1,"pid_namespace":"",)"
                                          R"("expires":9999999999,"blobs":[")" +
                                              Digest::of("loose").hex() + "\"]}\n");
    });
    CheckOptions options;
    options.repair = true;
    options.three_fs_wait = std::chrono::seconds(2);
    const CheckResult result = check_registry(cluster.address, options, cluster.warnings);
    publisher.join();
    CHECK(result.problems.size() == (announced ? 0 : 1));
    CHECK(fs::exists(cluster.mount_point / "layers" / blob) == announced);
    if (announced) CHECK(read_file(cluster.mount_point / "layers" / blob) == "loose");
  }
}

TEST_CASE("what another host has mended is found although this one remembers the old file", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.three_fs.entry_seconds = 3;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData);
  cluster.publish_all(cluster.address);
  const std::string blob = blob_name(Digest::of(kData));
  const fs::path seen = cluster.mount_point / "layers" / blob;
  const auto damage_and_mend = [&](const std::string& damaged) {
    cluster.three_fs.put_from_elsewhere(fs::path("layers") / blob, damaged);
    std::this_thread::sleep_for(std::chrono::seconds(4));
    REQUIRE(fs::file_size(seen) == damaged.size());
    cluster.three_fs.put_from_elsewhere(fs::path("layers") / blob, kData);
    REQUIRE(fs::file_size(seen) == damaged.size());  // remembered
  };
  damage_and_mend("short");
  CHECK(cluster.refusal() == "accepted");

  for (const std::string& damaged : {std::string("short"), std::string(kData.size(), 'x')}) {
    damage_and_mend(damaged);
    const engine::Home other =
        engine::Home::open(cluster.directory.path() / ("other" + std::to_string(damaged.size())));
    LocalStore store(other);
    try {
      pull(store, LayerRef::parse("base/x:1"), cluster.address, cluster.warnings);
    } catch (const Error& error) {
      FAIL(error.message());
    }
    CHECK(read_file(store.blob_path(Digest::of(kData))) == kData);
  }
  // What is damaged and stays so is told at once.
  cluster.three_fs.put_from_elsewhere(fs::path("layers") / blob, "short");
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const engine::Home other = engine::Home::open(cluster.directory.path() / "last");
  LocalStore store(other);
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(pull(store, LayerRef::parse("base/x:1"), cluster.address, cluster.warnings), Error);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("bytes that 3FS could not store fail the publishing at close, too", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData);
  cluster.publish_all(cluster.address);
  cluster.put("base/y", "other " + kData);
  cluster.three_fs.fails_close = true;
  CHECK_THAT(cluster.refusal(), Contains("close a new file") && Contains("EIO"));
  cluster.three_fs.fails_close = false;
  CHECK(problems(cluster) == "");
}

TEST_CASE("bytes that 3FS could not store fail the publishing at fsync", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData);
  cluster.publish_all(cluster.address);
  cluster.put("base/y", "other " + kData);
  cluster.three_fs.fails_fsync = true;
  CHECK_THAT(cluster.refusal(), Contains("fsync a new file") && Contains("EIO"));
  cluster.three_fs.fails_fsync = false;
  CHECK(problems(cluster) == "");
}

TEST_CASE("bytes that do not read back as written never get a name", "[sandbox][3fs]") {
  if (!has_fuse()) SKIP_BECAUSE("it needs root and /dev/fuse");
  Cluster cluster;
  cluster.put("base/x", kData);
  cluster.put("base/y", kData);
  cluster.publish_all(cluster.address);
  cluster.put("base/y", "other " + kData);
  cluster.three_fs.corrupts_writes = true;
  CHECK_THAT(cluster.refusal(), Contains("what was written does not read back"));
  cluster.three_fs.corrupts_writes = false;
  CHECK(problems(cluster) == "");
}
