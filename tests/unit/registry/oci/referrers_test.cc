#include "registry/oci/referrers.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "registry/oci/artifact.h"
#include "tests/unit/registry/kinds.h"

namespace dsec::registry {
namespace {

using Catch::Matchers::Contains;

/// An artifact of another kind or content each, all about the same subject.
std::string artifact(const std::string& type, int number = 0) {
  return canonical_json(
      {{"schemaVersion", 2},
       {"mediaType", kImageManifestType},
       {"artifactType", type},
       {"annotations", {{"number", std::to_string(number)}}},
       {"subject", {{"mediaType", kImageManifestType}, {"digest", Digest::of("it").str()}, {"size", 2}}}});
}

struct Setup {
  test::MemoryRegistry registry;
  dsec::test::HttpServer server{registry};
  TempDirectory place{std::filesystem::temp_directory_path()};
  CredentialStore logins{{place.path() / "auth.json"}, std::chrono::milliseconds(2000)};
  http::Client client{http::ClientOptions()};
  Authenticator authenticator{client, logins};
  OciClient oci{client, authenticator, server.authority(), OciClient::Scheme::Http};
  const std::string tag = "sha256-" + Digest::of("it").hex();

  std::map<std::string, std::string>& manifests() { return registry.state().manifests["x"]; }
  /// Types of what the list has, in order.
  std::vector<std::string> listed() {
    std::vector<std::string> types;
    if (!manifests().contains(tag)) return types;
    const Json list = parse_json(manifests()[tag], "list");
    CHECK(json_string(list, "mediaType") == "application/vnd.oci.image.index.v1+json");
    for (const Json& entry : list["manifests"]) {
      types.push_back(json_string(entry, "artifactType"));
      const std::string& there = manifests()[json_string(entry, "digest")];
      CHECK(json_u64(entry, "size") == there.size());
    }
    return types;
  }
};

TEST_CASE("a registry that keeps lists of referrers is left to do so", "[registry][oci][referrers]") {
  Setup setup;
  setup.registry.state().referrers = true;
  push_referrer(setup.oci, "x", "a", artifact("a"));
  CHECK(setup.manifests().contains("a"));
  CHECK_FALSE(setup.manifests().contains(setup.tag));
  delete_referrer(setup.oci, "x", *setup.oci.manifest("x", "a"));
  CHECK_FALSE(setup.manifests().contains("a"));
}

TEST_CASE("where a registry keeps no lists of referrers they are kept for it", "[registry][oci][referrers]") {
  Setup setup;
  push_referrer(setup.oci, "x", "a", artifact("a"));
  push_referrer(setup.oci, "x", "b", artifact("b"));
  CHECK(setup.listed() == std::vector<std::string>{"a", "b"});
  SECTION("once, however often something is pushed") {
    push_referrer(setup.oci, "x", "a", artifact("a"));
    CHECK(setup.listed() == std::vector<std::string>{"a", "b"});
  }
  SECTION("what has taken a tag over takes the place in the list") {
    push_referrer(setup.oci, "x", "a", artifact("a", 1));
    CHECK(setup.listed() == std::vector<std::string>{"b", "a"});
  }
  SECTION("what is deleted goes from it, and the list with the last") {
    delete_referrer(setup.oci, "x", *setup.oci.manifest("x", "a"));
    CHECK(setup.listed() == std::vector<std::string>{"b"});
    delete_referrer(setup.oci, "x", *setup.oci.manifest("x", "b"));
    CHECK_FALSE(setup.manifests().contains(setup.tag));
  }
  SECTION("entries of others stay, and what has gone does not") {
    setup.manifests()[Digest::of("theirs").str()] = "theirs";
    Json list = parse_json(setup.manifests()[setup.tag], "list");
    for (const char* text : {"theirs", "gone"})
      list["manifests"].push_back(
          {{"mediaType", "m"}, {"digest", Digest::of(text).str()}, {"size", 6}, {"artifactType", text}});
    setup.manifests()[setup.tag] = canonical_json(list);
    push_referrer(setup.oci, "x", "c", artifact("c"));
    CHECK(setup.listed() == std::vector<std::string>{"a", "b", "theirs", "c"});
  }
  SECTION("an entry that somebody else wrote over is written again") {
    int left = 1;
    setup.registry.state().before = [&](const dsec::test::Seen& seen) {
      // Right after ours.
      if (seen.method != "GET" || seen.target.find(setup.tag) == std::string::npos) return;
      if (setup.listed().size() == 3 && left-- > 0)
        setup.manifests()[setup.tag] = canonical_json({{"schemaVersion", 2},
                                                       {"mediaType", "application/vnd.oci.image.index.v1+json"},
                                                       {"manifests", Json::array()}});
    };
    push_referrer(setup.oci, "x", "c", artifact("c"));
    CHECK(setup.listed() == std::vector<std::string>{"c"});
  }
}

TEST_CASE("what a registry does not show at once is listed when it does", "[registry][oci][referrers]") {
  Setup setup;
  const std::string own = Digest::of(artifact("a")).str();
  std::string hidden;
  bool first = true, deleted = false;
  setup.registry.state().before = [&](const dsec::test::Seen& seen) {
    deleted = deleted || seen.method == "DELETE";
    if (!hidden.empty()) setup.manifests()[own] = std::exchange(hidden, "");
    if (first && setup.manifests().contains(own) && seen.target.ends_with(own)) {
      first = false;
      hidden = setup.manifests()[own];
      setup.manifests().erase(own);
    }
  };
  push_referrer(setup.oci, "x", "a", artifact("a"));
  CHECK_FALSE((first || deleted));
  CHECK(setup.listed() == std::vector<std::string>{"a"});
}

TEST_CASE("a tag in the place of a list of referrers that is no list is not touched", "[registry][oci][referrers]") {
  Setup setup;
  setup.manifests()[setup.tag] = "{}";
  CHECK_THROWS_WITH(push_referrer(setup.oci, "x", "a", artifact("a")), Contains("is no index"));
  CHECK(setup.manifests()[setup.tag] == "{}");
}

}  // namespace
}  // namespace dsec::registry
