#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <map>

#include "core/base/error.h"
#include "registry/oci/answer.h"
#include "registry/oci/auth.h"
#include "registry/oci/challenge.h"
#include "registry/oci/credentials.h"
#include "registry/oci/reference.h"
#include "tests/unit/registry/web/web_servers.h"

namespace dsec::registry {
namespace {

using Catch::Matchers::Contains;

/// The whole chain of an error.
std::string told(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing";
}

TEST_CASE("an image is named as docker and podman users write it", "[registry][oci]") {
  const auto shown = [](const std::string& text) { return ImageReference::parse(text).str(); };
  CHECK(shown("debian") == "docker.io/library/debian:latest");
  CHECK(shown("//debian:12") == "docker.io/library/debian:12");
  CHECK(shown("team/tool") == "docker.io/team/tool:latest");
  CHECK(shown("docker.io/debian") == "docker.io/library/debian:latest");
  CHECK(shown("index.docker.io/team/tool:1") == "docker.io/team/tool:1");
  CHECK(shown("//localhost/x") == "localhost/x:latest");
  CHECK(shown("//h.example:5000/a/b__c-d.e:V_1") == "h.example:5000/a/b__c-d.e:V_1");
  CHECK(shown("//[::1]:5000/x") == "[::1]:5000/x:latest");
  const std::string digest = Digest::of("x").str();
  const auto both = ImageReference::parse("h.example/x:1@" + digest);
  CHECK(both.target() == digest);
  CHECK(both.tag == "1");
  CHECK(ImageReference::parse("h.example/x@" + digest).tag.empty());
}

TEST_CASE("what names no image is refused with the reason", "[registry][oci]") {
  for (const std::string text :
       {"", "//", "h.example/", "h.example/UPPER", "h.example/a//b", "h.example/a..b", "-x/y",
        "h.example/x:", "h.example/x:-1", "h.example/x@sha256:12", "h.example/x@md5:12", "h.example:99999/x",
        "h.example:/x", "a/b c", "h.example/_x", "h.example/x-", "h.example/a___b", "h.example/a._b", "../etc"})
    CHECK_THROWS_WITH(ImageReference::parse(text), Contains("names no image"));
}

TEST_CASE("challenges are read with quotes, commas and several schemes", "[registry][oci][auth]") {
  const auto one = parse_challenges(
      "Bearer realm=\"https://auth.example/token\",service=\"registry.example\",scope=\"repository:a/b:pull,push\"");
  REQUIRE(one.size() == 1);
  CHECK(one[0].scheme == "bearer");
  CHECK(one[0].parameters.at("realm") == "https://auth.example/token");
  CHECK(one[0].parameters.at("scope") == "repository:a/b:pull,push");

  const auto two = parse_challenges("Negotiate, basic Realm = \"say \\\"hi\\\"\" , charset=UTF-8");
  REQUIRE(two.size() == 2);
  CHECK(two[1].scheme == "basic");
  CHECK(two[1].parameters.at("realm") == "say \"hi\"");
  CHECK(two[1].parameters.at("charset") == "UTF-8");

  CHECK(parse_challenges("").empty());
  CHECK(parse_challenges(",,, ,").empty());
  CHECK(parse_challenges("Bearer realm=\"open").at(0).parameters.at("realm") == "open");
  CHECK(parse_challenges("\"quoted\", Basic").size() == 1);
}

TEST_CASE("logins are found for a host and for a part of it", "[registry][oci][auth]") {
  const CredentialFile file = CredentialFile::parse(R"({
    "auths": {
      "https://index.docker.io/v1/": {"auth": "bWU6aHVi"},
      "h.example/team": {"auth": "dGVhbTp4"},
      "h.example": {"username": "me", "password": "p:w"},
      "token.example": {"auth": "bWU6", "identitytoken": "tok"},
      "empty.example": {}
    },
    "credHelpers": {"gcr.example": "gcloud"}, "credsStore": "secretservice", "HttpHeaders": {"x": "y"}})",
                                                    "config.json");
  CHECK(file.find("docker.io", "library/debian")->password == "hub");
  CHECK(file.find("h.example", "team/tool")->user == "team");
  CHECK(file.find("h.example", "other/tool")->password == "p:w");
  CHECK(file.find("token.example", "x")->identity_token == "tok");
  CHECK(file.find("empty.example", "x") == nullptr);
  CHECK(file.find("unknown.example", "x") == nullptr);
  CHECK(file.helpers.at("gcr.example") == "gcloud");
  CHECK(file.store == "secretservice");
  CHECK_THAT(told([] { CredentialFile::parse(R"({"auths": {"h": {"auth": "%%%%"}}})", "f"); }), Contains("'h'"));
  CHECK_THROWS_AS(CredentialFile::parse("[]", "f"), Error);
  CHECK_THROWS_AS(CredentialFile::parse("{", "f"), Error);
  CHECK(CredentialFile::parse(R"({"auths": [], "credHelpers": 1, "credsStore": null})", "f").logins.empty());
}

TEST_CASE("logins are looked for where podman writes them, with and without a directory of the session",
          "[registry][oci][auth]") {
  using registry::test::Variables;
  const std::string uid = std::to_string(::geteuid());
  const std::map<std::string, std::string> nothing = {{"REGISTRY_AUTH_FILE", ""},
                                                      {"XDG_RUNTIME_DIR", ""},
                                                      {"XDG_CONFIG_HOME", ""},
                                                      {"DOCKER_CONFIG", ""},
                                                      {"HOME", "/home/me"}};
  using Files = std::vector<std::filesystem::path>;
  {
    const Variables variables(nothing);
    CHECK(CredentialStore::usual_files("/run") == Files{"/run/containers/" + uid + "/auth.json",
                                                        "/home/me/.config/containers/auth.json",
                                                        "/home/me/.docker/config.json"});
  }
  std::map<std::string, std::string> session = nothing;
  session["XDG_RUNTIME_DIR"] = "/run/user/7";
  const Variables variables(session);
  CHECK(CredentialStore::usual_files("/run").front() == "/run/user/7/containers/auth.json");
}

TEST_CASE("what a credential helper prints is a login or an identity token", "[registry][oci][auth]") {
  CHECK(parse_helper_answer(R"({"ServerURL":"h","Username":"me","Secret":"pw"})", "helper") ==
        Credential{"me", "pw", "", "helper"});
  CHECK(parse_helper_answer(R"({"Username":"<token>","Secret":"tok"})", "helper") ==
        Credential{"", "", "tok", "helper"});
  CHECK_THROWS_AS(parse_helper_answer("credentials not found", "helper"), Error);
  CHECK_THROWS_AS(parse_helper_answer(R"({"Username":"me"})", "helper"), Error);
}

TEST_CASE("a token has a text and an end", "[registry][oci][auth]") {
  CHECK(Token::parse(R"({"token":"a","expires_in":300})").lifetime == std::chrono::seconds(300));
  CHECK(Token::parse(R"({"access_token":"b"})").text == "b");
  CHECK(Token::parse(R"({"access_token":"b"})").lifetime == std::chrono::seconds(60));
  CHECK(Token::parse(R"({"token":"a","expires_in":-1})").lifetime == std::chrono::seconds(60));
  CHECK(Token::parse(R"({"token":"a","expires_in":99999999999999})").lifetime == std::chrono::hours(24));
  CHECK_THAT(told([] { Token::parse("{}"); }), Contains("neither"));
  CHECK_THAT(told([] { Token::parse(R"({"token":"a\r\nX: y"})"); }), Contains("no header can hold"));
  CHECK_THROWS_AS(Token::parse("<html>"), Error);
}

TEST_CASE("what a registry complains of is told in one line", "[registry][oci]") {
  CHECK(complaint_of(R"({"errors":[{"code":"DENIED","message":"no\nway"},{"code":"X"}]})") == "DENIED: no\\x0away; X");
  CHECK(complaint_of("<html>").empty());
  CHECK(complaint_of("[1]").empty());
  CHECK(complaint_of(R"({"errors":[1]})").empty());
}

}  // namespace
}  // namespace dsec::registry
