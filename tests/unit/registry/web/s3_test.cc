// Registries in buckets, with a server in memory that checks every signature.
#include <fcntl.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "registry/layout/layout.h"
#include "registry/registries.h"
#include "registry/registry.h"
#include "registry/web/bucket_publisher.h"
#include "registry/web/s3_answer.h"
#include "registry/web/s3_place.h"
#include "tests/unit/registry/registry_fixture.h"
#include "tests/unit/registry/web/web_servers.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;
using dsec::test::answer;
using dsec::test::HttpServer;
using dsec::test::Reply;
using dsec::test::Seen;

struct Bucket {
  Scratch from, to;
  MemoryBucket memory{"layers"};
  MemoryBucket::State& state = memory.state();
  HttpServer server{memory};
  Variables variables{
      {{"AWS_ENDPOINT_URL", server.url("")}, {"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}}};
  RegistryAddress address = RegistryAddress::parse("s3://layers/team");
  Progress quiet;

  void publish(const std::string& ref = "base/x:1") { publish_refs(from.store, {ref}, address); }
  /// A place that sends in small parts.
  S3Place place(std::uint64_t part = 1000) { return S3Place(Config{}, patient({}), address, part); }
  /// Requests; those for leases are left out.
  std::size_t times(const std::string& method, const std::string& part = "") {
    const std::vector<Seen> seen = server.seen();
    return static_cast<std::size_t>(std::count_if(seen.begin(), seen.end(), [&](const Seen& one) {
      return one.method == method && one.target.find(part) != std::string::npos &&
             one.target.find("/leases/") == std::string::npos;
    }));
  }
};

TEST_CASE("what is published to a bucket lies there as in a directory", "[registry][s3]") {
  Bucket bucket;
  const auto layer = put_layer(bucket.from.store, "base/library/x", "1", "meta", "data");
  bucket.publish("base/library/x:1");
  std::vector<std::string> keys;
  for (const auto& [key, content] : bucket.state.objects) keys.push_back(key);
  CHECK(keys.size() == 6);  // marker, three blobs, manifest, tag
  CHECK(bucket.state.objects.at("team/dsec-registry.json") == marker_text());
  CHECK(bucket.state.objects.at("team/" + blob_name(Digest::of("data"))) == "data");
  CHECK(bucket.state.objects.at("team/" + manifest_name(layer.digest)) == layer.manifest.canonical());
  CHECK(bucket.state.objects.at("team/tags/base/library+x/1") == layer.digest.str() + "\n");
  // Again: nothing is written.
  const std::size_t before = bucket.times("PUT");
  bucket.publish("base/library/x:1");
  CHECK(bucket.times("PUT") == before);
}

TEST_CASE("the manifest is written after the blobs, and the tag last", "[registry][s3]") {
  Bucket bucket;
  put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  bucket.publish();
  std::vector<std::string> written;
  for (const Seen& seen : bucket.server.seen())
    if (seen.method == "PUT") written.push_back(seen.target.substr(13, 4));
  CHECK(written == std::vector<std::string>{"dsec", "leas", "blob", "blob", "blob", "mani", "tags"});
}

TEST_CASE("a publisher that is stopped anywhere leaves whole layers or none", "[registry][s3]") {
  Bucket bucket;
  const auto old = put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  bucket.publish();
  const auto layer = put_layer(bucket.from.store, "base/x", "1", "meta 2", "data 2");
  const auto stock = bucket.state.objects;
  for (int stop = 0;; ++stop) {
    bucket.state.objects = stock;
    int writes = 0;
    bucket.state.instead = [&](const Seen& seen) -> std::optional<Reply> {
      return seen.method == "PUT" && writes++ >= stop ? std::optional(answer("403 Forbidden")) : std::nullopt;
    };
    const bool failed = told([&] { bucket.publish(); }) != "nothing";
    bucket.state.instead = nullptr;
    Scratch fresh;
    const auto pulled = pull_ref(fresh.store, "base/x:1", bucket.address).layer;
    CHECK(pulled.digest == (failed ? old.digest : layer.digest));
    bucket.publish();
    CHECK(open_registry(bucket.address, OpenMode::Read, bucket.quiet)->resolve(named("base/x:1")) == layer.digest);
    if (!failed) break;
    REQUIRE(stop < 20);
  }
}

TEST_CASE("a prefix with something else below it becomes no registry", "[registry][s3]") {
  Bucket bucket;
  put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  bucket.state.objects["team/photo"] = "x";
  CHECK_THAT(told([&] { bucket.publish(); }), Contains("no registry") && Contains("nothing below it"));
  CHECK(bucket.state.objects.size() == 1);
  // What lies beside it is no matter.
  bucket.address = RegistryAddress::parse("s3://layers/tea");
  CHECK_NOTHROW(bucket.publish());
  CHECK_THAT(told([&] { pull_ref(bucket.to.store, "base/x:1", RegistryAddress::parse("s3://layers/none")); }),
             Contains("there is no http://") && Contains("makes a registry"));
}

TEST_CASE("a server without conditional writes is written to without them", "[registry][s3]") {
  Bucket bucket;
  bucket.state.knows_conditions = false;
  const auto layer = put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  bucket.publish();
  CHECK(pull_ref(bucket.to.store, "base/x:1", bucket.address).layer.digest == layer.digest);
}

TEST_CASE("a blob goes in parts, and is there when all of them are", "[registry][s3]") {
  Bucket bucket;
  const std::string data = random_bytes(4500, 3);
  put_layer(bucket.from.store, "base/x", "1", "meta", data);
  const Blob blob{BlobRole::Data, Digest::of(data), data.size()};
  const S3Place place = bucket.place();
  const auto contents = contents_of(bucket.from.store);
  const auto publisher = publish_to_bucket(place, *contents, "abcdef", {});
  std::uint64_t told_bytes = 0;
  CHECK(publisher->put_blob(blob, [&](std::uint64_t done) { told_bytes = done; }));
  CHECK(told_bytes == data.size());
  CHECK(bucket.times("PUT", "partNumber=") == 5);
  CHECK(bucket.state.objects.at("team/" + blob_name(blob.digest)) == data);
  CHECK(bucket.state.uploads.empty());
  CHECK(publisher->has_blob(blob));
  CHECK_NOTHROW(publisher->verify_blob(blob));
}

TEST_CASE("an upload that fails is aborted, and a damaged file is never completed", "[registry][s3]") {
  Bucket bucket;
  const std::string data = random_bytes(4500, 3);
  put_layer(bucket.from.store, "base/x", "1", "meta", data);
  const Blob blob{BlobRole::Data, Digest::of(data), data.size()};
  const S3Place place = bucket.place();
  const auto contents = contents_of(bucket.from.store);
  const auto publisher = publish_to_bucket(place, *contents, "abcdef", {});
  const auto put = [&] { publisher->put_blob(blob, [](std::uint64_t) {}); };
  bucket.state.instead = [](const Seen& seen) -> std::optional<Reply> {
    return seen.target.find("partNumber=3") != std::string::npos ? std::optional(answer("403 Forbidden"))
                                                                 : std::nullopt;
  };
  CHECK_THAT(told(put), Contains("403 Forbidden"));
  CHECK(bucket.state.uploads.empty());
  // An answer of 200 that is none.
  bucket.state.instead = [](const Seen& seen) -> std::optional<Reply> {
    return seen.method == "POST" && seen.target.find("uploadId=") != std::string::npos
               ? std::optional(answer("200 OK", {}, "<Error><Code>InternalError</Code></Error>"))
               : std::nullopt;
  };
  CHECK_THAT(told(put), Contains("InternalError"));
  CHECK(bucket.state.uploads.empty());
  bucket.state.instead = nullptr;
  std::string other = data;
  other.back() ^= 1;
  overwrite(bucket.from.store.blob_file(blob.digest), other);
  CHECK_THAT(told(put), Contains("the store's copy is damaged"));
  CHECK(bucket.state.uploads.empty());
  CHECK(bucket.state.objects.size() == 1);  // its lease
}

TEST_CASE("a completion whose answer is lost is taken for done when the object is there", "[registry][s3]") {
  Bucket bucket;
  const std::string data = random_bytes(4500, 3);
  put_layer(bucket.from.store, "base/x", "1", "meta", data);
  const Blob blob{BlobRole::Data, Digest::of(data), data.size()};
  bool lost = false;
  bucket.state.instead = [&](const Seen& seen) -> std::optional<Reply> {
    if (lost || seen.method != "POST" || seen.target.find("uploadId=") == std::string::npos) return std::nullopt;
    lost = true;
    const MemoryBucket inside = bucket.memory;
    auto hook = std::move(bucket.state.instead);
    bucket.state.instead = nullptr;
    inside(seen);
    bucket.state.instead = std::move(hook);
    Reply none;
    none.reset = true;
    return none;
  };
  const S3Place place = bucket.place();
  const auto contents = contents_of(bucket.from.store);
  const auto publisher = publish_to_bucket(place, *contents, "abcdef", {});
  CHECK_NOTHROW(publisher->put_blob(blob, [](std::uint64_t) {}));
  CHECK(lost);
  CHECK(bucket.state.objects.at("team/" + blob_name(blob.digest)) == data);
}

TEST_CASE("refusals of S3 say what to look at, and never a key", "[registry][s3]") {
  Bucket bucket;
  put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  SECTION("a wrong secret") {
    const Variables wrong({{"AWS_ENDPOINT_URL", bucket.server.url("")},
                           {"AWS_ACCESS_KEY_ID", "id"},
                           {"AWS_SECRET_ACCESS_KEY", "not-the-secret"}});
    const std::string text = told([&] { bucket.publish(); });
    CHECK_THAT(text, Contains("SignatureDoesNotMatch") && Contains("AWS_ACCESS_KEY_ID of the environment"));
    CHECK(text.find("not-the-secret") == std::string::npos);
  }
  SECTION("no keys") {
    const Variables none({{"AWS_ENDPOINT_URL", bucket.server.url("")}});
    CHECK_THAT(told([&] { bucket.publish(); }), Contains("AccessDenied") && Contains("no keys were found"));
  }
  SECTION("no bucket") {
    bucket.address = RegistryAddress::parse("s3://nothing/team");
    CHECK_THAT(told([&] { bucket.publish(); }), Contains("NoSuchBucket") && Contains("make the bucket 'nothing'"));
  }
  SECTION("another region") {
    bucket.state.instead = [](const Seen&) {
      return answer("400 Bad Request", {},
                    "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>");
    };
    CHECK_THAT(told([&] { bucket.publish(); }), Contains("AWS_REGION=eu-west-1"));
  }
  SECTION("a clock") {
    bucket.state.instead = [](const Seen&) {
      return answer("403 Forbidden", {}, "<Error><Code>RequestTimeTooSkewed</Code></Error>");
    };
    CHECK_THAT(told([&] { bucket.publish(); }), Contains("set the clock"));
  }
}

TEST_CASE("a bucket that everybody may read needs no keys", "[registry][s3]") {
  Bucket bucket;
  const auto layer = put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  bucket.publish();
  bucket.state.anonymous = true;
  const Variables none({{"AWS_ENDPOINT_URL", bucket.server.url("")}});
  CHECK(pull_ref(bucket.to.store, "base/x:1", bucket.address).layer.digest == layer.digest);
}

TEST_CASE("keys of a session that ended are read anew", "[registry][s3]") {
  Bucket bucket;
  const auto layer = put_layer(bucket.from.store, "base/x", "1", "meta", "data");
  bucket.publish();
  const fs::path file = bucket.from.directory.path() / "credentials";
  const auto write =
      [&](const std::string& token) {
        std::ofstream(file, std::ios::trunc)
            << "[default]\naws_access_key_id = id\naws_secret_access_key = secret\naws_session_token = " << token
            << "\n";
      };
  const Variables files({{"AWS_ENDPOINT_URL", bucket.server.url("")}, {"AWS_SHARED_CREDENTIALS_FILE", file.native()}});
  bucket.state.session_token = "one";
  write("one");
  const auto registry = open_registry(bucket.address, OpenMode::Read, bucket.quiet);
  CHECK(registry->resolve(named("base/x:1")) == layer.digest);
  bucket.state.session_token = "two";
  CHECK_THAT(told([&] { registry->resolve(named("base/x:1")); }), Contains("ExpiredToken"));
  write("two");
  CHECK(registry->resolve(named("base/x:1")) == layer.digest);
  CHECK(registry->resolve(named(layer.digest.str())) == layer.digest);
}

AwsSections sections(const std::string& text) { return parse_aws_file(text); }

TEST_CASE("the files of AWS tools are read as those read them", "[registry][s3]") {
  auto parsed = sections(
      "# comment\n[default]\nregion = eu-west-1 # theirs\naws_access_key_id=AK\n\n[profile work]\ns3 =\n"
      "  addressing_style = path\n  endpoint_url = https://s3.example\nregion=us-west-2\n; x\nnonsense\n"
      "[plain]\naws_secret_access_key = a/b+c=\n");
  CHECK(parsed["default"]["region"] == "eu-west-1");
  CHECK(parsed["default"]["aws_access_key_id"] == "AK");
  CHECK(parsed["work"]["s3.addressing_style"] == "path");
  CHECK(parsed["work"]["s3.endpoint_url"] == "https://s3.example");
  CHECK(parsed["work"]["region"] == "us-west-2");
  CHECK(parsed["plain"]["aws_secret_access_key"] == "a/b+c=");
  CHECK(sections("").empty());
  CHECK(sections("[\n[x").count("x") == 1);
}

struct AwsFiles {
  Scratch scratch;
  std::map<std::string, std::string> variables{{"HOME", scratch.directory.path().native()}};

  AwsFiles() {
    fs::create_directories(scratch.directory.path() / ".aws");
    std::ofstream(scratch.directory.path() / ".aws/credentials")
        << "[default]\naws_access_key_id=DK\naws_secret_access_key=DS\n[work]\naws_access_key_id=WK\n"
           "aws_secret_access_key=WS\naws_session_token=WT\n";
    std::ofstream(scratch.directory.path() / ".aws/config")
        << "[default]\nregion=eu-central-1\n[profile work]\nregion=eu-west-3\ns3 =\n  addressing_style = virtual\n"
           "[profile sso]\nsso_session = corp\n";
  }
  S3Environment read() {
    return S3Environment([&](const char* name) { return variables.count(name) ? variables.at(name) : std::string(); });
  }
};

TEST_CASE("keys and region come from where AWS tools look, in their order", "[registry][s3]") {
  AwsFiles files;
  CHECK(files.read().key_id == "DK");
  CHECK(files.read().region == "eu-central-1");
  files.variables["AWS_PROFILE"] = "work";
  CHECK(files.read().key_id == "WK");
  CHECK(files.read().session_token == "WT");
  CHECK(files.read().region == "eu-west-3");
  CHECK(files.read().path_style == false);
  CHECK_THAT(files.read().origin, Contains("profile 'work'") && Contains(".aws/credentials"));
  files.variables["AWS_REGION"] = "us-east-2";
  files.variables["AWS_ACCESS_KEY_ID"] = "EK";
  files.variables["AWS_SECRET_ACCESS_KEY"] = "ES";
  CHECK(files.read().key_id == "EK");
  CHECK(files.read().session_token.empty());
  CHECK(files.read().region == "us-east-2");
  files.variables.erase("AWS_ACCESS_KEY_ID");
  files.variables["AWS_PROFILE"] = "wrok";
  CHECK_THAT(told([&] { files.read(); }), Contains("AWS_PROFILE names no profile: 'wrok' | work"));
  files.variables["AWS_PROFILE"] = "sso";
  CHECK_THAT(told([&] { files.read(); }), Contains("'sso_session'") && Contains("export-credentials --profile sso"));
}

TEST_CASE("the bucket stands in the host for Amazon and in the path for others", "[registry][s3]") {
  AwsFiles files;
  const auto root = [&](const std::string& url, S3Settings settings = {}) {
    RegistryAddress address = RegistryAddress::parse(url);
    address.s3 = std::move(settings);
    return S3Target::of(address, files.read()).root.str();
  };
  CHECK(root("s3://layers/x") == "https://layers.s3.eu-central-1.amazonaws.com/");
  CHECK(root("s3://lay.ers/x") == "https://s3.eu-central-1.amazonaws.com/lay.ers/");
  CHECK(root("s3://layers/x", {"", "cn-north-1", true}) == "https://s3.cn-north-1.amazonaws.com.cn/layers/");
  CHECK(root("s3://layers/x", {"https://objects.example:9000/", "", {}}) == "https://objects.example:9000/layers/");
  CHECK(root("s3://layers", {"https://objects.example", "", false}) == "https://layers.objects.example/");
  files.variables["AWS_ENDPOINT_URL"] = "http://localhost:1";
  CHECK(root("s3://layers") == "http://localhost:1/layers/");
  files.variables["AWS_ENDPOINT_URL_S3"] = "http://localhost:2";
  CHECK(root("s3://layers") == "http://localhost:2/layers/");
  CHECK_THAT(told([&] { root("s3://layers", {"localhost", "", {}}); }), Contains("the endpoint of s3://layers"));
}

TEST_CASE("what is configured about one host is not taken for another", "[registry][s3]") {
  const Variables variables{{{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}}};
  Config config;
  config.hosts.push_back({.host = "example.invalid", .plain_http = true, .ca = "", .mirrors = {}});
  RegistryAddress address = RegistryAddress::parse("s3://minio/team");
  const auto listed = [&](const std::string& endpoint, bool path_style) {
    address.s3 = {endpoint, "", path_style};
    return told([&] { S3Place(config, impatient(), address).names("tags/"); });
  };
  CHECK_THAT(listed("http://minio.example.invalid", true),
             Contains("minio.example.invalid would be asked without encryption"));
  CHECK_THAT(listed("http://other.invalid", false), Contains("minio.other.invalid would be asked without encryption"));
}

TEST_CASE("answers of S3 are read without believing them", "[registry][s3]") {
  CHECK(xml_texts("<a><Key>x&amp;y&#43;&#x7a;</Key><Key></Key><Key>open", "Key") ==
        std::vector<std::string>{"x&y+z", ""});
  CHECK(first_xml_text("<Codes>1</Codes>", "Code").empty());
  CHECK(escaped_xml("\"<&>") == "&quot;&lt;&amp;&gt;");
  CHECK_THROWS_AS(S3Page::parse("<html>"), Error);
  CHECK_THROWS_AS(S3Page::parse("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"), Error);
  Bucket bucket;
  bucket.state.instead = [](const Seen& seen) -> std::optional<Reply> {
    if (seen.target.find("list-type") == std::string::npos) return std::nullopt;
    return answer("200 OK", {},
                  "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>"
                  "</ListBucketResult>");
  };
  CHECK_THAT(told([&] { bucket.place().names("tags/"); }), Contains("does not come to an end"));
}

}  // namespace
}  // namespace dsec::registry::test
