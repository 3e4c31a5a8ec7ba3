#include "registry/oci/client.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "tests/support/http_server.h"

namespace dsec::registry {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using test::answer;
using test::HttpServer;
using test::Reply;
using test::Seen;

std::string value(const Seen& seen, const std::string& name) {
  const auto found = seen.headers.find(name);
  return found == seen.headers.end() ? "" : found->second;
}

/// A client that talks to `server`, with the logins of one file.
struct Setup {
  explicit Setup(HttpServer& server, const std::string& credential_file = "")
      : logins({place.path() / "auth.json"}, milliseconds(2000)) {
    if (!credential_file.empty()) write_file_atomic(place.path() / "auth.json", credential_file);
    oci = std::make_unique<OciClient>(client, authenticator, server.authority(), OciClient::Scheme::Http);
  }
  static http::ClientOptions options() {
    http::ClientOptions options;
    options.retry.first_wait = options.retry.longest_wait = milliseconds(1);
    return options;
  }
  TempDirectory place{std::filesystem::temp_directory_path()};
  CredentialStore logins;
  http::Client client{options()};
  Authenticator authenticator{client, logins};
  std::unique_ptr<OciClient> oci;
};

std::string told(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    std::string text = error.message();
    for (const std::string& hint : error.hints()) text += " | " + hint;
    return text;
  }
  return "nothing";
}

/// A registry that wants tokens, and the server that hands them out.
struct TokenRegistry {
  HttpServer* server = nullptr;
  std::string login;  ///< what Basic has to say; empty: anybody gets a token
  int lifetime = 300;
  int tokens = 0;
  std::string good;  ///< the only token that is accepted

  Reply operator()(const Seen& seen) {
    if (seen.target.starts_with("/token")) {
      if (!login.empty() && value(seen, "authorization") != "Basic " + base64(login) &&
          seen.body.find("refresh_token=" + login) == std::string::npos)
        return answer("401 Unauthorized");
      good = "t" + std::to_string(++tokens);
      return answer("200 OK", {}, Json{{"token", good}, {"expires_in", lifetime}}.dump());
    }
    if (value(seen, "authorization") != "Bearer " + good || good.empty())
      return answer("401 Unauthorized", {"WWW-Authenticate: Bearer realm=\"" + server->url("/token") +
                                         "\",service=\"test\",scope=\"repository:x:pull\""});
    return answer("200 OK", {"Content-Type: application/vnd.oci.image.manifest.v1+json"}, "{}");
  }
};

TEST_CASE("a token is fetched when one is wanted, used again, and replaced when it is refused",
          "[registry][oci][auth]") {
  TokenRegistry registry;
  HttpServer server(std::ref(registry));
  registry.server = &server;
  Setup setup(server);
  CHECK(setup.oci->manifest("x", "1")->bytes == "{}");
  CHECK(setup.oci->manifest("x", "1"));
  CHECK(registry.tokens == 1);
  CHECK_THAT(server.seen()[1].target, Contains("service=test") && Contains("scope=repository%3Ax%3Apull"));
  registry.good = "another";  // as after the server forgot its tokens
  CHECK(setup.oci->manifest("x", "1"));
  CHECK(registry.tokens == 2);
  // Another scope needs a token of its own.
  CHECK(setup.oci->manifest("y", "1"));
  CHECK(registry.tokens == 3);
}

TEST_CASE("a token is renewed before it ends", "[registry][oci][auth]") {
  TokenRegistry registry;
  registry.lifetime = 1;
  HttpServer server(std::ref(registry));
  registry.server = &server;
  Setup setup(server);
  setup.oci->manifest("x", "1");
  const std::size_t before = server.seen().size();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (registry.tokens == 1 && std::chrono::steady_clock::now() < deadline) setup.oci->manifest("x", "1");
  REQUIRE(registry.tokens == 2);
  // It was asked for without being refused first.
  const auto seen = server.seen();
  for (std::size_t i = before; i < seen.size(); ++i)
    if (!seen[i].target.starts_with("/token")) CHECK_FALSE(value(seen[i], "authorization").empty());
}

TEST_CASE("a login goes to the token server, and no further", "[registry][oci][auth]") {
  TokenRegistry registry;
  registry.login = "me:secret";
  HttpServer server(std::ref(registry));
  registry.server = &server;
  const auto file = [&](const std::string& entry) {
    return "{\"auths\":{\"" + server.authority() + "\":" + entry + "}}";
  };
  CHECK_THAT(told([&] { Setup(server).oci->manifest("x", "1"); }),
             Contains("not logged in") && Contains("docker login"));
  Setup wrong(server, file("{\"username\":\"me\",\"password\":\"wrong\"}"));
  CHECK_THAT(told([&] { wrong.oci->manifest("x", "1"); }), Contains("does not accept the login of"));
  Setup right(server, file("{\"username\":\"me\",\"password\":\"secret\"}"));
  CHECK(right.oci->manifest("x", "1"));
  CHECK_THAT(server.seen()[server.seen().size() - 2].target, Contains("account=me"));
  registry.login = "tok";
  Setup identity(server, file("{\"identitytoken\":\"tok\"}"));
  CHECK(identity.oci->manifest("x", "1"));
  CHECK_THAT(server.seen()[server.seen().size() - 2].body, Contains("grant_type=refresh_token"));
}

TEST_CASE("a registry that refuses every token is not asked for ever", "[registry][oci][auth]") {
  HttpServer* self = nullptr;
  HttpServer server([&](const Seen& seen) {
    if (seen.target.starts_with("/token")) return answer("200 OK", {}, R"({"token":"t"})");
    return answer("401 Unauthorized", {"WWW-Authenticate: Bearer realm=\"" + self->url("/token") + "\""});
  });
  self = &server;
  CHECK_THAT(told([&] { Setup(server).oci->manifest("x", "1"); }), Contains("401 Unauthorized"));
  CHECK(server.seen().size() <= 8);
}

TEST_CASE("basic authentication is given once", "[registry][oci][auth]") {
  HttpServer server([](const Seen& seen) {
    return value(seen, "authorization") == "Basic " + base64("me:pw")
               ? answer("200 OK")
               : answer("401 Unauthorized", {"WWW-Authenticate: Basic realm=\"x\""});
  });
  Setup right(server, "{\"auths\":{\"" + server.authority() + "\":{\"auth\":\"" + base64("me:pw") + "\"}}}");
  right.oci->manifest("x", "1");
  CHECK_THAT(told([&] { Setup(server).oci->manifest("x", "1"); }), Contains("wants a user name"));
  const std::size_t before = server.seen().size();
  Setup wrong(server, "{\"auths\":{\"" + server.authority() + "\":{\"auth\":\"" + base64("me:no") + "\"}}}");
  CHECK_THAT(told([&] { wrong.oci->manifest("x", "1"); }), Contains("does not accept the login"));
  CHECK(server.seen().size() == before + 2);
}

TEST_CASE("a helper that does not end is not waited for", "[registry][oci][auth]") {
  HttpServer server([](const Seen&) { return answer("401 Unauthorized", {"WWW-Authenticate: Basic realm=\"x\""}); });
  Setup setup(server, "{\"credsStore\":\"slow\"}");
  const auto helper = setup.place.path() / "docker-credential-slow";
  const auto write = [&](const std::string& text) { write_file_atomic(helper, "#!/bin/sh\n" + text + "\n", 0755); };
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (setup.place.path().native() + ":" + path).c_str(), 1);
  write("exec sleep 600");
  CHECK_THAT(told([&] { setup.oci->manifest("x", "1"); }), Contains("did not answer in time"));
  write("exec cat /dev/zero");
  CHECK_THAT(told([&] { setup.oci->manifest("x", "1"); }), Contains("more than 64 KiB"));
  write("echo 'credentials not found in native keychain'; exit 1");
  CHECK_THAT(told([&] { setup.oci->manifest("x", "1"); }), Contains("wants a user name"));
  ::setenv("PATH", path.c_str(), 1);
}

TEST_CASE("a manifest is taken only with its digest", "[registry][oci]") {
  std::string body = "{}", type = "application/vnd.oci.image.manifest.v1+json", told_digest = Digest::of("{}").str();
  HttpServer server([&](const Seen&) {
    return answer("200 OK", {"Content-Type: " + type, "Docker-Content-Digest: " + told_digest}, body);
  });
  Setup setup(server);
  CHECK(setup.oci->manifest("x", "1")->digest == Digest::of("{}"));
  CHECK(setup.oci->manifest("x", told_digest));
  body = "{ }";
  CHECK_THAT(told([&] { setup.oci->manifest("x", "1"); }), Contains("has the digest"));
  CHECK_THAT(told([&] { setup.oci->manifest("x", told_digest); }), Contains("has the digest"));
  type = "application/vnd.docker.distribution.manifest.v1+prettyjws";
  CHECK_THAT(told([&] { setup.oci->manifest("x", "1"); }), Contains("schema 1"));
}

TEST_CASE("lists are read page by page, on the same host alone", "[registry][oci]") {
  std::string next = "</v2/x/tags/list?last=b&n=2>; rel=\"next\"";
  HttpServer server([&](const Seen& seen) {
    if (seen.target.find("last=b") != std::string::npos) return answer("200 OK", {}, R"({"tags":["c"]})");
    return answer("200 OK", {"Link: " + next}, R"({"tags":["a","b",3]})");
  });
  Setup setup(server);
  CHECK(setup.oci->tags("x") == std::vector<std::string>{"a", "b", "c"});
  next = "<http://127.0.0.2:1/>; rel=\"next\"";
  CHECK_THAT(told([&] { setup.oci->tags("x"); }), Contains("another host"));
}

/// An upload in chunks, whose second chunk is lost on the way.
TEST_CASE("a large blob goes in chunks, and on where the registry says that it is", "[registry][oci][upload]") {
  const std::uint64_t size = 70 << 20, chunk = 32 << 20;
  TempDirectory place(std::filesystem::temp_directory_path());
  TempFile file(place.path());
  REQUIRE(::ftruncate(file.fd(), size) == 0);
  std::uint64_t there = 0;
  int patches = 0;
  std::string closed;
  HttpServer server([&](const Seen& seen) {
    const auto place_of = [&] {
      return std::vector<std::string>{"Location: /upload?state=" + std::to_string(there),
                                      "Range: 0-" + std::to_string(there ? there - 1 : 0)};
    };
    if (seen.method == "POST") return answer("202 Accepted", place_of());
    if (seen.method == "GET") return answer("204 No Content", place_of());
    if (seen.method == "PATCH") {
      if (++patches == 2) return Reply{"", milliseconds(0), true};
      CHECK(value(seen, "content-range") ==
            std::to_string(there) + "-" + std::to_string(std::min(there + chunk, size) - 1));
      there += seen.body.size();
      return answer("202 Accepted", place_of());
    }
    closed = seen.target;
    return answer("201 Created");
  });
  Setup setup(server);
  const Digest digest = Digest::of("anything");
  std::uint64_t last = 0;
  setup.oci->push_blob("x", digest, {{}, file.fd(), size}, [&](std::uint64_t done) { last = done; });
  CHECK(there == size);
  CHECK(last == size);
  CHECK(patches == 4);
  CHECK(closed == "/upload?state=" + std::to_string(size) + "&digest=" + http::percent_encode(digest.str()));
}

TEST_CASE("an upload that fails is cancelled", "[registry][oci][upload]") {
  bool cancelled = false;
  HttpServer server([&](const Seen& seen) {
    if (seen.method == "POST") return answer("202 Accepted", {"Location: /upload"});
    if (seen.method == "DELETE") cancelled = seen.target == "/upload";
    return seen.method == "DELETE"
               ? answer("204 No Content")
               : answer("400 Bad Request", {}, R"({"errors":[{"code":"DIGEST_INVALID","message":"other bytes"}]})");
  });
  Setup setup(server);
  CHECK_THAT(told([&] {
               setup.oci->push_blob("x", Digest::of("a"), {"b", -1, 1}, [](std::uint64_t) {});
             }),
             Contains("DIGEST_INVALID: other bytes"));
  CHECK(cancelled);
}

TEST_CASE("a registry that does not mount says so by beginning an upload", "[registry][oci][upload]") {
  std::string status = "201 Created";
  HttpServer server([&](const Seen& seen) {
    if (seen.method == "DELETE") return answer("204 No Content");
    CHECK_THAT(seen.target, Contains("mount=sha256%3A") && Contains("from=a%2Fb"));
    return answer(status, {"Location: /v2/x/blobs/uploads/1"});
  });
  Setup setup(server);
  CHECK(setup.oci->mount_blob("x", Digest::of("a"), "a/b"));
  status = "202 Accepted";
  CHECK_FALSE(setup.oci->mount_blob("x", Digest::of("a"), "a/b"));
  CHECK(server.seen().back().method == "DELETE");
}

}  // namespace
}  // namespace dsec::registry
