// What every kind of registry does alike, behind the one port.
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "registry/registries.h"
#include "registry/registry.h"
#include "tests/support/http_server.h"
#include "tests/unit/registry/registry_fixture.h"
#include "tests/unit/registry/web/web_servers.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;
using dsec::test::answer;
using dsec::test::Reply;
using dsec::test::Seen;

/// An OCI registry in memory, as far as one that behaves goes.
class MemoryRegistry {
 public:
  Reply operator()(const Seen& seen) {
    const std::string path = seen.target.substr(0, seen.target.find('?'));
    if (path == "/v2/") return answer("200 OK");
    if (path == "/v2/_catalog") {
      Json names = Json::array();
      for (const auto& [name, tags] : manifests_) names.push_back(name);
      return answer("200 OK", {}, Json{{"repositories", names}}.dump());
    }
    for (const std::string_view kind : {"/blobs/uploads/", "/blobs/", "/manifests/", "/tags/list"})
      if (const std::size_t at = path.find(kind); at != std::string::npos) {
        const std::string repository = path.substr(4, at - 4), rest = path.substr(at + kind.size());
        if (kind == "/blobs/uploads/") return upload(seen, repository);
        if (kind == "/blobs/") return give(seen, blobs_[repository], rest);
        if (kind == "/tags/list") return tags(repository);
        if (seen.method != "PUT") return give(seen, manifests_[repository], rest);
        manifests_[repository][rest] = seen.body;
        manifests_[repository][Digest::of(seen.body).str()] = seen.body;
        return answer("201 Created");
      }
    return answer("404 Not Found");
  }

 private:
  using Contents = std::map<std::string, std::string>;

  static std::string parameter(const Seen& seen, const std::string& name) {
    const std::size_t at = seen.target.find(name + "=");
    if (at == std::string::npos) return "";
    std::string value = seen.target.substr(at + name.size() + 1);
    value = value.substr(0, value.find('&'));
    for (const auto& [code, plain] : {std::pair("%3A", ":"), std::pair("%2F", "/")})
      for (std::size_t found; (found = value.find(code)) != std::string::npos;) value.replace(found, 3, plain);
    return value;
  }
  Reply upload(const Seen& seen, const std::string& repository) {
    Contents& blobs = blobs_[repository];
    if (seen.method == "PUT") {
      const std::string digest = parameter(seen, "digest");
      if (Digest::of(seen.body).str() != digest)
        return answer("400 Bad Request", {}, R"({"errors":[{"code":"DIGEST_INVALID"}]})");
      blobs[digest] = seen.body;
      return answer("201 Created");
    }
    const std::string mount = parameter(seen, "mount");
    const Contents& from = blobs_[parameter(seen, "from")];
    if (const auto found = from.find(mount); found != from.end()) {
      blobs[mount] = found->second;
      return answer("201 Created");
    }
    return answer("202 Accepted", {"Location: /v2/" + repository + "/blobs/uploads/1"});
  }
  static Reply give(const Seen& seen, const Contents& contents, const std::string& name) {
    const auto found = contents.find(name);
    if (found == contents.end()) return answer("404 Not Found");
    if (const auto range = seen.headers.find("range"); range != seen.headers.end()) {
      const std::size_t first = std::stoul(range->second.substr(6)), whole = found->second.size();
      const std::string last = range->second.substr(range->second.find('-') + 1);
      const std::string part =
          found->second.substr(first, last.empty() ? std::string::npos : std::stoul(last) + 1 - first);
      return answer("206 Partial Content",
                    {"Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(first + part.size() - 1) +
                     "/" + std::to_string(whole)},
                    part);
    }
    Reply reply = answer("200 OK", {"Content-Type: application/vnd.oci.image.manifest.v1+json"}, found->second);
    if (seen.method == "HEAD") reply.bytes.resize(reply.bytes.size() - found->second.size());
    return reply;
  }
  Reply tags(const std::string& repository) {
    Json names = Json::array();
    for (const auto& [name, bytes] : manifests_[repository])
      if (!name.starts_with("sha256:")) names.push_back(name);
    return names.empty() ? answer("404 Not Found") : answer("200 OK", {}, Json{{"tags", names}}.dump());
  }

  std::map<std::string, Contents> blobs_, manifests_;
};

/// One of each: `address` is published to, `readable` is where readers of the same registry go.
struct Kinds {
  Scratch from, to;
  dsec::test::HttpServer oci{MemoryRegistry()}, web{WebFolder(from.registry_path())}, s3{MemoryBucket("layers")};
  Variables variables{
      {{"AWS_ENDPOINT_URL", s3.url("")}, {"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}}};
  RegistryAddress address, readable;
  Progress quiet;

  explicit Kinds(const std::string& kind) {
    const std::map<std::string, std::string> urls = {{"file", from.registry_url()},
                                                     {"https", from.registry_url()},
                                                     {"oci", "oci://" + oci.authority() + "/team/layers"},
                                                     {"s3", "s3://layers/team"}};
    address = RegistryAddress::parse(urls.at(kind));
    readable = kind == "https" ? RegistryAddress::parse(web.url("/layers")) : address;
  }
};

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

}  // namespace
}  // namespace dsec::registry::test
