// Registries behind a static web server, and the catalogue that lets them be listed.
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "core/base/error.h"
#include "registry/check.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"
#include "registry/registries.h"
#include "registry/registry.h"
#include "tests/unit/registry/registry_fixture.h"
#include "tests/unit/registry/web/web_servers.h"

namespace dsec::registry::test {
namespace {

using Catch::Matchers::Contains;
using dsec::test::answer;
using dsec::test::HttpServer;
using dsec::test::Reply;
using dsec::test::Seen;

/// A registry with one layer behind a server whose answers a test may replace.
struct Served {
  Scratch from, to;
  std::function<std::optional<Reply>(const Seen&)> instead;
  HttpServer server{[this](const Seen& seen) {
    if (instead)
      if (auto other = instead(seen)) return *other;
    return WebFolder(from.registry_path())(seen);
  }};
  RegistryAddress directory = RegistryAddress::parse(from.registry_url());
  RegistryAddress address = RegistryAddress::parse(server.url("/layers"));
  std::string data = random_bytes(300'000, 1);
  engine::StoredLayer layer = put_layer(from.store, "base/library/x", "1", "meta", data);
  Progress quiet;

  Served() { publish_refs(from.store, {"base/library/x:1"}, directory); }
  fs::path file(const std::string& name) const { return from.registry_path() / name; }
  Blob blob() const { return {BlobRole::Data, Digest::of(data), data.size()}; }
};

TEST_CASE("publishing to what a web server shows is refused with where it can be done", "[registry][web]") {
  Served served;
  const std::string text = told([&] { publish_refs(served.from.store, {"base/library/x:1"}, served.address); });
  CHECK_THAT(text, Contains("it can be read, not published to") && Contains("--to file:///PATH"));
  CHECK(served.server.seen().empty());
}

TEST_CASE("a URL without a registry is told from one that fails", "[registry][web]") {
  Served served;
  const auto open = [&] { open_registry(served.address, OpenMode::Read, served.quiet); };
  served.instead = [](const Seen&) { return answer("404 Not Found"); };
  CHECK_THAT(told(open), Contains("there is no http://") && Contains("dsec-registry.json"));
  served.instead = [](const Seen&) { return answer("403 Forbidden"); };
  CHECK_THAT(told(open), Contains("403 Forbidden") && Contains("let the server's user read"));
  served.instead = [](const Seen&) { return answer("401 Unauthorized"); };
  CHECK_THAT(told(open), Contains("401 Unauthorized") && Contains("a login for 127.0.0.1:"));
  served.instead = [](const Seen&) { return answer("200 OK", {}, "<html>a start page</html>"); };
  CHECK_THAT(told(open), Contains("dsec-registry.json:1:1"));
  served.instead = [](const Seen&) { return answer("200 OK", {}, R"({"schema":2,"type":"dsec-registry"})"); };
  CHECK_THAT(told(open), Contains("has format 2") && Contains("use a newer dsec"));
}

TEST_CASE("names of tags are escaped, and only what may change is asked for anew", "[registry][web]") {
  Served served;
  pull_ref(served.to.store, "base/library/x:1", served.address);
  bool tag = false, blob = false;
  for (const Seen& seen : served.server.seen()) {
    const bool anew = seen.headers.count("cache-control") > 0;
    tag = tag || (seen.target == "/layers/tags/base/library%2Bx/1" && anew);
    blob = blob || (seen.target.starts_with("/layers/blobs/") && !anew);
  }
  CHECK(tag);
  CHECK(blob);
}

TEST_CASE("without a catalogue, tags and digests are pulled and lists say what they lack", "[registry][web]") {
  Served served;
  fs::remove(served.file("catalogue.json"));
  const std::string list = told([&] { registry_tags(served.address, served.quiet); });
  CHECK_THAT(list, Contains("has no catalogue.json") && Contains("check --repair"));
  CHECK_THAT(told([&] { pull_ref(served.to.store, served.layer.digest.hex().substr(0, 10), served.address); }),
             Contains("has no catalogue.json"));
  CHECK_THAT(told([&] { pull_ref(served.to.store, "base/library/x:2", served.address); }),
             Contains("no layer 'base/library/x:2'"));
  CHECK(pull_ref(served.to.store, "base/library/x:1", served.address).layer.digest == served.layer.digest);
}

TEST_CASE("a catalogue that is behind hides no tag, and check finds and mends it", "[registry][web]") {
  Served served;
  const std::string before = read_file(served.file("catalogue.json"));
  put_layer(served.from.store, "base/y", "1", "meta", "other");
  publish_refs(served.from.store, {"base/y:1"}, served.directory);
  overwrite(served.file("catalogue.json"), before);
  CHECK(registry_tags(served.address, served.quiet).size() == 1);
  CHECK_NOTHROW(pull_ref(served.to.store, "base/y:1", served.address));
  const auto problems = check_registry(served.directory, {}, served.quiet).problems;
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].kind == RegistryProblem::Kind::Catalogue);
  CheckOptions repair;
  repair.repair = true;
  CHECK(check_registry(served.directory, repair, served.quiet).problems[0].repaired);
  CHECK(check_registry(served.directory, {}, served.quiet).problems.empty());
  CHECK(registry_tags(served.address, served.quiet).size() == 2);
  // Publishing what is there already mends it as well.
  overwrite(served.file("catalogue.json"), "junk");
  publish_refs(served.from.store, {"base/y:1"}, served.directory);
  CHECK(registry_tags(served.address, served.quiet).size() == 2);
}

TEST_CASE("the catalogue names all that publishers at once published", "[registry][web]") {
  Scratch scratch;
  const auto address = RegistryAddress::parse(scratch.registry_url());
  constexpr int kPublishers = 4;
  for (int i = 0; i < kPublishers; ++i)
    put_layer(scratch.store, "base/x" + std::to_string(i), "1", "meta", std::to_string(i));
  for (int round = 0; round < rounds(5); ++round) {
    fs::remove_all(scratch.registry_path());
    std::vector<std::thread> publishers;
    for (int i = 0; i < kPublishers; ++i)
      publishers.emplace_back([&, i] {
        LocalStore store(scratch.home);
        publish_refs(store, {"base/x" + std::to_string(i) + ":1"}, address);
      });
    for (std::thread& publisher : publishers) publisher.join();
    CHECK(parse_catalogue(read_file(scratch.registry_path() / "catalogue.json")).size() == 2 * kPublishers);
  }
}

TEST_CASE("nothing but names of manifests and tags comes out of a catalogue", "[registry][web]") {
  const std::string manifest = manifest_name(Digest::of("x"));
  const auto parse = [](const std::string& names) {
    return parse_catalogue(R"({"schema":1,"type":"dsec-catalogue","names":)" + names + "}");
  };
  CHECK(parse("[]").empty());
  CHECK(parse("[\"tags/base/x/1\",\"" + manifest + "\"]") == std::vector<std::string>{manifest, "tags/base/x/1"});
  for (const char* name : {"../secret", "tags/base/x", "tags/base/../1", "tags/base/x/1/2", "tags/none/x/1",
                           "manifests/sha256/ab/abc.json", "tags/base/x/.tmp-1", "blobs/sha256/ab/abc", "/etc/passwd"})
    CHECK(parse("[\"" + std::string(name) + "\"]").empty());
  CHECK_THROWS_AS(parse("[1]"), Error);
  CHECK_THROWS_AS(parse("7"), Error);
  CHECK_THROWS_AS(parse_catalogue("{}"), Error);
  CHECK_THROWS_AS(parse_catalogue(R"({"schema":2,"type":"dsec-catalogue","names":[]})"), Error);
}

TEST_CASE("a server that lies puts nothing into the store", "[registry][web]") {
  Served served;
  const std::string data = "/layers/" + blob_name(served.blob().digest);
  const auto pull = [&] { return told([&] { pull_ref(served.to.store, "base/library/x:1", served.address); }); };
  SECTION("other bytes") {
    std::string other = served.data;
    other.back() ^= 1;
    served.instead = [=](const Seen& seen) {
      return seen.target == data ? std::optional(answer("200 OK", {}, other)) : std::nullopt;
    };
    CHECK_THAT(pull(), Contains("the registry's copy is damaged"));
  }
  SECTION("fewer bytes") {
    served.instead = [=, &served](const Seen& seen) {
      return seen.target == data ? std::optional(answer("200 OK", {}, served.data.substr(0, 1000))) : std::nullopt;
    };
    CHECK_THAT(pull(), Contains("1000 bytes instead of 300000"));
  }
  SECTION("a manifest of another layer") {
    const auto second = put_layer(served.from.store, "base/z", "1", "m", "d");
    served.instead = [&, text = second.manifest.canonical()](const Seen& seen) {
      return seen.target.find("/manifests/") != std::string::npos ? std::optional(answer("200 OK", {}, text))
                                                                  : std::nullopt;
    };
    CHECK_THAT(pull(), Contains("its bytes are not those that were published"));
  }
  SECTION("a tag that is a page") {
    served.instead = [](const Seen& seen) {
      return seen.target.find("/tags/") != std::string::npos ? std::optional(answer("200 OK", {}, "<html>"))
                                                             : std::nullopt;
    };
    CHECK_THAT(pull(), Contains("is damaged"));
  }
  CHECK(served.to.store.list().empty());
  CHECK(temp_files_below(served.to.home.root()).empty());
}

TEST_CASE("parts of a blob that changed between them are not mixed", "[registry][web]") {
  Served served;
  const auto registry = open_registry(served.address, OpenMode::Read, served.quiet);
  std::string part(1000, 0);
  const auto read = [&](std::uint64_t offset) {
    registry->read_range(served.blob(), offset, std::as_writable_bytes(std::span(part)));
  };
  read(0);
  std::string other = served.data;
  other[200'000] ^= 1;
  overwrite(served.file(blob_name(served.blob().digest)), other);
  CHECK_THAT(told([&] { read(200'000); }), Contains("it changed while it was read"));
  // A server that does not know If-Range gives itself away by the ETag.
  overwrite(served.file(blob_name(served.blob().digest)), served.data);
  read(0);
  served.instead = [&](const Seen& seen) -> std::optional<Reply> {
    if (!seen.headers.count("range")) return std::nullopt;
    return answer("206 Partial Content", {"ETag: \"other\"", "Content-Range: bytes 5000-5999/300000"}, part);
  };
  CHECK_THAT(told([&] { read(5000); }), Contains("its ETag is '\"other\"'"));
  // Whoever tries again begins anew.
  served.instead = nullptr;
  read(5000);
  CHECK(part == served.data.substr(5000, 1000));
}

TEST_CASE("a web server's registry is checked from what its manifests name", "[registry][web]") {
  Served served;
  const CheckResult whole = check_registry(served.address, {}, served.quiet);
  CHECK(whole.problems.empty());
  CHECK(whole.tags == 1);
  CHECK(whole.layers == 1);
  CHECK(whole.blobs == 3);
  std::string other = served.data;
  other.back() ^= 1;
  overwrite(served.file(blob_name(served.blob().digest)), other);
  overwrite(served.file("tags/base/library+x/1"), Digest::of("gone").str());
  fs::remove(served.file(blob_name(Digest::of("meta"))));
  std::vector<std::string> kinds;
  for (const auto& problem : check_registry(served.address, {}, served.quiet).problems)
    kinds.emplace_back(to_string(problem.kind));
  std::sort(kinds.begin(), kinds.end());
  CHECK(kinds == std::vector<std::string>{"altered", "dangling-tag", "missing"});
  // What cannot be read says nothing about what it holds.
  for (const std::string part : {"tags/base", "manifests/sha256", "blobs/sha256"}) {
    served.instead = [&](const Seen& seen) -> std::optional<Reply> {
      const bool meant = seen.method == "GET" && seen.target.find(part) != std::string::npos;
      return meant ? std::optional(answer("403 Forbidden")) : std::nullopt;
    };
    CHECK_THAT(told([&] { check_registry(served.address, {}, served.quiet); }), Contains("403 Forbidden"));
  }
  served.instead = nullptr;
  CheckOptions repair;
  repair.repair = true;
  CHECK_THAT(told([&] { check_registry(served.address, repair, served.quiet); }),
             Contains("cannot be repaired from here"));
}

}  // namespace
}  // namespace dsec::registry::test
