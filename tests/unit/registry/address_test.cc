#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "registry/directory/three_fs.h"
#include "registry/layout/layout.h"
#include "registry/registry_url.h"
#include "tests/unit/registry/fixture.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a registry's URL gives its directory, and back", "[registry][url]") {
  const auto address = RegistryAddress::parse("file:///srv/a%20b%25/c/");
  CHECK(address.kind == RegistryAddress::Kind::Directory);
  CHECK(address.root == "/srv/a b%/c");
  CHECK(address.url() == "file:///srv/a%20b%25/c");
  const auto three = RegistryAddress::parse("3fs:///mnt/3fs/layers");
  CHECK(three.kind == RegistryAddress::Kind::ThreeFs);
  CHECK(three.root == "/mnt/3fs/layers");
  CHECK(three.url() == "3fs:///mnt/3fs/layers");
  CHECK(RegistryAddress::parse("file:///").root == "/");
  const auto oci = RegistryAddress::parse("oci://registry.example:5000/team/layers/");
  CHECK(oci.kind == RegistryAddress::Kind::Oci);
  CHECK(oci.host == "registry.example:5000");
  CHECK(oci.repository == "team/layers");
  CHECK(oci.url() == "oci://registry.example:5000/team/layers");
  const auto web = RegistryAddress::parse("https://Layers.example:443/team/a%20b//");
  CHECK(web.kind == RegistryAddress::Kind::Http);
  CHECK(web.base == "https://layers.example/team/a%20b");
  CHECK(RegistryAddress::parse(web.url()).base == web.base);
  CHECK(RegistryAddress::parse("http://localhost:8080").base == "http://localhost:8080");
  const auto s3 = RegistryAddress::parse("s3://my.bucket/team/layers_1/");
  CHECK(s3.kind == RegistryAddress::Kind::S3);
  CHECK(s3.bucket == "my.bucket");
  CHECK(s3.prefix == "team/layers_1");
  CHECK(s3.url() == "s3://my.bucket/team/layers_1");
  CHECK(RegistryAddress::parse("s3://bucket/").url() == "s3://bucket");
}

TEST_CASE("what is no URL of a registry is refused with the way to write it", "[registry][url]") {
  const auto refused = [](const std::string& url) {
    try {
      RegistryAddress::parse(url);
      return std::string("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return error.message() + " | " + (error.hints().empty() ? "" : error.hints()[0]);
    }
  };
  CHECK_THAT(refused("/srv/x"), Contains("is no URL") && Contains("file:///srv/x"));
  CHECK_THAT(refused("file://host/x"), Contains("has no absolute path"));
  CHECK_THAT(refused("ftp://host/x"), Contains("is no URL of a registry"));
  CHECK_THAT(refused("https://host/x?y=1"), Contains("has more than a path"));
  CHECK_THAT(refused("https://me:pw@host/x"), Contains("user name or password"));
  CHECK_THAT(refused("https:///x"), Contains("no URL"));
  CHECK_THAT(refused("file:///a%zz"), Contains("invalid % escape"));
  CHECK_THAT(refused("file:///a%2"), Contains("invalid % escape"));
  CHECK_THAT(refused("file:///a%00b"), Contains("control character"));
  CHECK_THAT(refused(""), Contains("is no URL"));
  for (const char* url :
       {"oci://", "oci://host", "oci://host/", "oci://host/UPPER", "oci://host/a:1", "oci:///x", "oci://ho st/x"})
    CHECK_THAT(refused(url), Contains("names no repository"));
  for (const char* url : {"s3://", "s3:///x", "s3://Bucket/x", "s3://ab", "s3://bucket/a//b", "s3://bucket/../x",
                          "s3://bucket/a b", "s3://bucket/a+b", "s3://b..t/x", "s3://bucket-"})
    CHECK_THAT(refused(url), Contains("names no place in a bucket"));
}

TEST_CASE("a name with slashes keeps its tags in one folder", "[registry][layout]") {
  const LayerName name = LayerName::parse("base/library/debian");
  CHECK(tag_name(name, "12") == "tags/base/library+debian/12");
  CHECK(name_of_folder(LayerKind::Base, "library+debian") == name);
  CHECK_FALSE(name_of_folder(LayerKind::Base, "../x"));
  CHECK_FALSE(name_of_folder(LayerKind::Base, "Upper"));
  const Digest digest = Digest::of("x");
  CHECK(digest_of_manifest_file(digest.hex() + ".json") == digest);
  CHECK_FALSE(digest_of_manifest_file(digest.hex()));
  CHECK_FALSE(digest_of_manifest_file("x.json"));
}

// As a host with 3FS shows it; the fields before the dash vary in number.
constexpr std::string_view kMountinfo =
    "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    "40 22 0:39 / /mnt/my\\0403fs rw,nosuid,nodev shared:2 master:3 - fuse.hf3fs hf3fs.stage rw,user_id=0\n"
    "41 40 0:40 / /mnt/my\\0403fs/inner rw - tmpfs tmpfs rw\n"
    "nonsense\n"
    "42 22 0:41 / /srv rw - fuse.sshfs host:/ rw\n"
    "43 22 0:42 / /srv rw - fuse.hf3fs hf3fs.prod rw\n";

TEST_CASE("the filesystem a path lies on is read from mountinfo", "[registry][3fs]") {
  const auto mounts = parse_mountinfo(kMountinfo);
  REQUIRE(mounts.size() == 5);
  const auto type = [&](const char* path) { return mount_of(path, mounts)->type; };
  CHECK(type("/home") == "ext4");
  CHECK(type("/mnt/my 3fs") == "fuse.hf3fs");
  CHECK(type("/mnt/my 3fs/layers") == "fuse.hf3fs");
  CHECK(type("/mnt/my 3fsx") == "ext4");
  CHECK(type("/mnt/my 3fs/inner/x") == "tmpfs");
  CHECK(type("/srv/x") == "fuse.hf3fs");  // the later mount hides the earlier
  CHECK(mount_of("/x", {}) == nullptr);
  CHECK(parse_mountinfo("").empty());
}

TEST_CASE("a 3fs: URL that does not lie on 3FS is refused", "[registry][3fs]") {
  Scratch scratch;
  CHECK_FALSE(is_three_fs(scratch.directory.path()));
  CHECK_FALSE(is_three_fs("/no/such/place"));
  try {
    require_three_fs(scratch.registry_path("not made yet"));
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK_THAT(error.message(), Contains("does not lie on 3FS, but on "));
    CHECK_THAT(error.hints().back(), Contains("--allow-any-fs"));
  }
}

}  // namespace
}  // namespace dsec::registry::test
