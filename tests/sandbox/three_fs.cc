// Registries on a filesystem that behaves like a 3FS client. What only a cluster shows (storage, other clients' caches,
// failover) is not tested here.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "registry/check.h"
#include "registry/directory/three_fs.h"
#include "registry/publish.h"
#include "registry/pull.h"
#include "tests/support/fake_three_fs.h"
#include "tests/support/skip.h"

using namespace dsec;
using namespace dsec::registry;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

struct Cluster {
  TempDirectory directory{fs::temp_directory_path()};
  engine::Home home = engine::Home::open(directory.path() / "home");
  LocalStore store{home};
  fs::path mount_point = [this] {
    const fs::path path = directory.path() / "3fs";
    fs::create_directory(path);
    return path;
  }();
  test::FakeThreeFs three_fs{mount_point};
  RegistryAddress address = RegistryAddress::parse("3fs://" + (mount_point / "layers").native());
  Progress quiet;

  void put(const std::string& name, const std::string& content) {
    const auto session = store.begin_session();
    LayerManifest manifest{LayerName::parse(name), "linux/amd64", {}, {}, {}, {}};
    LayerImage image;
    for (const auto& [role, bytes] :
         {std::pair(BlobRole::Meta, "meta of " + name), std::pair(BlobRole::Data, content)}) {
      TempFile file = session->new_file();
      write_all(file.fd(), bytes);
      image.blobs.push_back(session->adopt(std::move(file), role));
    }
    manifest.images.push_back(image);
    store.add(manifest, "1", engine::Trust::BuiltHere, *session);
  }

  PublishResult publish_all(const RegistryAddress& to) {
    const std::vector<LayerRef> refs = {LayerRef::parse("base/x:1"), LayerRef::parse("base/y:1")};
    return publish(store, refs, to, {}, quiet);
  }
  std::string refusal() {
    try {
      publish_all(address);
      return "accepted";
    } catch (const Error& error) {
      return error.message();
    }
  }
};

std::string problems(Cluster& cluster) {
  std::string text;
  for (const RegistryProblem& problem : check_registry(cluster.address, {}, cluster.quiet).problems)
    text += problem.path + " " + problem.what + "; ";
  return text;
}

bool has_fuse() {
  if (::geteuid() != 0) return false;
  if (::access("/dev/fuse", F_OK) != 0) {
    // A module on many hosts, which makes the device when it is loaded.
    try {
      run_command({.argv = {"modprobe", "fuse"}});
    } catch (const Error&) {
      return false;
    }
  }
  return ::access("/dev/fuse", R_OK | W_OK) == 0;
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
  CHECK(cluster.three_fs.replaced() == std::vector<std::string>{"1", "1"});

  const engine::Home other = engine::Home::open(cluster.directory.path() / "other");
  LocalStore store(other);
  const PullResult pulled = pull(store, LayerRef::parse("base/y:1"), cluster.address, cluster.quiet);
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
  const PullResult pulled = pull(store, LayerRef::parse("base/x:1"), cluster.address, cluster.quiet);
  publisher.join();
  CHECK(pulled.layer.tags == std::vector<std::string>{"base/x:1"});
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::seconds(4));
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
