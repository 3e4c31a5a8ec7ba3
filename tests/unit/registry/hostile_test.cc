// What a registry may hold when somebody else wrote it: nothing of it may get into the store, hang us, or stay behind.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/gc/gc.h"
#include "registry/layout/layout.h"
#include "registry/registries.h"
#include "tests/unit/registry/registry_fixture.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

/// A registry with base/x:1 and a store that is going to pull from it.
struct Hostile {
  Scratch from, to;
  RegistryAddress address = RegistryAddress::parse(from.registry_url());
  engine::StoredLayer layer = put_layer(from.store, "base/x", "1", "meta", "data");
  fs::path root = from.registry_path();

  Hostile() { publish_refs(from.store, {"base/x:1"}, address); }

  fs::path blob(const std::string& bytes) const { return root / blob_name(Digest::of(bytes)); }
  fs::path tag() const { return root / "tags/base/x/1"; }

  /// Makes base/x:1 name a manifest of these bytes.
  void set_manifest(const std::string& text) {
    const Digest digest = Digest::of(text);
    fs::create_directories((root / manifest_name(digest)).parent_path());
    overwrite(root / manifest_name(digest), text);
    overwrite(tag(), digest.str() + "\n");
  }
  void set_manifest(const LayerManifest& manifest) { set_manifest(manifest.canonical()); }

  /// Why pulling is refused; checks that nothing of it stays.
  std::string refusal(const std::string& ref = "base/x:1") {
    std::string message = "accepted";
    try {
      pull_ref(to.store, ref, address);
    } catch (const Error& error) {
      message = error.message();
    }
    CHECK(to.store.list().empty());
    CHECK(temp_files_below(to.home.root()).empty());
    collect_garbage(to.store, {}, false);
    CHECK(files_below(to.store.blob_root()).empty());
    return message;
  }
};

TEST_CASE("a blob with other bytes is refused", "[registry][hostile]") {
  Hostile hostile;
  overwrite(hostile.blob("data"), "DATA");
  CHECK_THAT(hostile.refusal(), Contains("the registry's copy is damaged"));
}

TEST_CASE("a blob that is shorter or longer than the manifest says is refused", "[registry][hostile]") {
  Hostile hostile;
  overwrite(hostile.blob("data"), "dat");
  CHECK_THAT(hostile.refusal(), Contains("it has 3 bytes instead of 4"));
  overwrite(hostile.blob("data"), std::string(10 << 20, 'x'));
  CHECK_THAT(hostile.refusal(), Contains("it has more than the expected 4 bytes"));
  overwrite(hostile.blob("data"), "");
  CHECK_THAT(hostile.refusal(), Contains("it has 0 bytes instead of 4"));
  fs::remove(hostile.blob("data"));
  CHECK_THAT(hostile.refusal(), Contains("the registry does not have blob"));
}

TEST_CASE("a manifest that lies about sizes is refused", "[registry][hostile]") {
  Hostile hostile;
  LayerManifest manifest = hostile.layer.manifest;
  for (const std::uint64_t size : {3ull, 5ull, 1ull << 62, ~0ull}) {
    manifest.images[0].blobs[1].size = size;
    hostile.set_manifest(manifest);
    CHECK(hostile.refusal() != "accepted");
  }
  // The same blob twice with two sizes.
  manifest = hostile.layer.manifest;
  manifest.images.push_back(manifest.images[0]);
  manifest.images[1].blobs[1].size = 5;
  hostile.set_manifest(manifest);
  CHECK(hostile.refusal() != "accepted");
  // A hole of any size costs its maker nothing.
  manifest = hostile.layer.manifest;
  manifest.images[0].blobs[1].size = 1ull << 40;
  hostile.set_manifest(manifest);
  fs::permissions(hostile.blob("data"), fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(hostile.blob("data"), 1ull << 40);
  CHECK_THAT(hostile.refusal(), Contains("and the store has"));
}

TEST_CASE("a manifest with other bytes than its name promises is refused", "[registry][hostile]") {
  Hostile hostile;
  overwrite(hostile.root / manifest_name(hostile.layer.digest), "{}");
  CHECK_THAT(hostile.refusal(), Contains("its bytes are not those that were published"));
}

TEST_CASE("a manifest that is no manifest is refused", "[registry][hostile]") {
  Hostile hostile;
  const std::string good = hostile.layer.manifest.canonical();
  hostile.set_manifest(good + "\n");
  CHECK_THAT(hostile.refusal(), Contains("canonical form"));
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("null"), std::string("\xff\xfe"), good.substr(0, 40),
        std::string(1'000'000, '['), "{\"schema\":99" + good.substr(good.find(','))}) {
    hostile.set_manifest(text);
    CHECK(hostile.refusal() != "accepted");
  }
  const fs::path file = hostile.root / manifest_name(hostile.layer.digest);
  overwrite(hostile.tag(), hostile.layer.digest.str());
  fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(file, 1ull << 36);
  CHECK_THAT(hostile.refusal(), Contains("more than 16777216 bytes"));
}

TEST_CASE("a tag whose file holds something else is refused", "[registry][hostile]") {
  Hostile hostile;
  for (const std::string& text : {std::string(""), std::string("sha256:zz"), std::string("../../etc/passwd"),
                                  std::string(1 << 20, 'a'), std::string(64, '\0')}) {
    overwrite(hostile.tag(), text);
    CHECK(hostile.refusal() != "accepted");
  }
  overwrite(hostile.tag(), Digest::of("nothing").str());
  CHECK_THAT(hostile.refusal(), Contains("the registry does not have it"));
}

TEST_CASE("a tag that answers with a layer of another kind is refused", "[registry][hostile]") {
  Hostile hostile;
  put_layer(hostile.from.store, "toolkit/evil", "1", "meta", "data");
  publish_refs(hostile.from.store, {"toolkit/evil:1"}, hostile.address);
  overwrite(hostile.tag(), read_file(hostile.root / "tags/toolkit/evil/1"));
  CHECK_THAT(hostile.refusal(), Contains("the registry answers with the toolkit layer 'toolkit/evil'"));
}

TEST_CASE("symlinks, FIFOs and directories in a registry are not followed, read or waited for", "[registry][hostile]") {
  Hostile hostile;
  const fs::path secret = hostile.from.directory.path() / "secret";
  std::ofstream(secret) << "data";
  fs::remove(hostile.blob("data"));
  fs::create_symlink(secret, hostile.blob("data"));
  CHECK_THAT(hostile.refusal(), Contains("ELOOP"));
  hostile.address.in_place = true;
  CHECK_THAT(hostile.refusal(), Contains("ELOOP"));
  fs::remove(hostile.blob("data"));
  REQUIRE(::mkfifo(hostile.blob("data").c_str(), 0600) == 0);
  CHECK_THAT(hostile.refusal(), Contains("is no regular file"));
  hostile.address.in_place = false;
  CHECK_THAT(hostile.refusal(), Contains("is no regular file"));
  fs::remove(hostile.blob("data"));
  fs::create_directory(hostile.blob("data"));
  CHECK_THAT(hostile.refusal(), Contains("is no regular file"));
  fs::remove(hostile.blob("data"));

  fs::create_symlink(hostile.tag(), hostile.root / "tags/base/x/2");
  CHECK_THAT(hostile.refusal("base/x:2"), Contains("ELOOP"));
  fs::create_directory_symlink("x", hostile.root / "tags/base/y");
  CHECK(hostile.refusal("base/y:1") != "accepted");
  fs::rename(hostile.root / "blobs", hostile.from.directory.path() / "blobs");
  fs::create_directory_symlink(hostile.from.directory.path() / "blobs", hostile.root / "blobs");
  CHECK(hostile.refusal() != "accepted");
}

TEST_CASE("a registry with a newer or no format is refused", "[registry][hostile]") {
  Hostile hostile;
  const fs::path marker = hostile.root / "dsec-registry.json";
  overwrite(marker, "{\"schema\":2,\"type\":\"dsec-registry\"}");
  CHECK_THAT(hostile.refusal(), Contains("it has format 2, this dsec knows 1"));
  overwrite(marker, "{\"schema\":1,\"type\":\"photo-album\"}");
  CHECK_THAT(hostile.refusal(), Contains("is of another type"));
  overwrite(marker, "}");
  CHECK(hostile.refusal() != "accepted");
  fs::remove(marker);
  CHECK_THAT(hostile.refusal(), Contains("there is no dsec-registry.json"));
}

TEST_CASE("check and the list of tags survive whatever a registry holds", "[registry][hostile]") {
  Hostile hostile;
  Progress quiet;
  std::ofstream(hostile.root / "tags/base/x/.hidden") << "x";
  std::ofstream(hostile.root / "tags/base/NAME") << "x";
  fs::create_directories(hostile.root / "tags/kitchen/sink");
  fs::create_directories(hostile.root / "manifests/sha256/zz");
  std::ofstream(hostile.root / "manifests/sha256/zz/x.json") << "x";
  std::ofstream(hostile.root / "blobs/sha256/file") << "x";
  std::ofstream(hostile.root / "leases").close();
  fs::create_directory(hostile.root / "leases2");
  std::ofstream(hostile.root / "leases/x.json") << "{";
  REQUIRE(::mkfifo((hostile.root / "tags/base/x/fifo").c_str(), 0600) == 0);
  const CheckResult result = check_registry(hostile.address, {}, quiet);
  CHECK(result.problems.size() >= 6);
  overwrite(hostile.root / "tags/base/x/bad", "junk");
  const auto tags = registry_tags(hostile.address, quiet);
  REQUIRE(tags.size() == 3);
  CHECK(tags[0].ref == "base/x:1");
  CHECK(tags[0].problem.empty());
  CHECK_THAT(tags[1].problem, Contains("'base/x:bad' is damaged"));
  CHECK_THAT(tags[2].problem, Contains("is no regular file"));
}

}  // namespace
}  // namespace dsec::registry::test
