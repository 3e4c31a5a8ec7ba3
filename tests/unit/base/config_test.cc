#include "core/base/config.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec {
namespace {
namespace fs = std::filesystem;

/// DSEC_CONFIG names a file of this test, as long as the object lives.
struct OwnConfig {
  TempDirectory scratch{fs::temp_directory_path()};
  fs::path file = scratch.path() / "sub/config.yaml";
  OwnConfig() { ::setenv("DSEC_CONFIG", file.c_str(), 1); }
  ~OwnConfig() { ::unsetenv("DSEC_CONFIG"); }
  void write(const std::string& text) {
    fs::create_directories(file.parent_path());
    write_file_atomic(file, text);
  }
};

TEST_CASE("registries are read in long and short form", "[base][config]") {
  const Config config = Config::parse(
      "version: 1\nregistries:\n  b: file:///srv/b\n  a: {url: '3fs:///m/a', in_place: yes, allow_any_fs: true}\n",
      "f");
  REQUIRE(config.registries.size() == 2);
  CHECK(config.registries[0] == RegistryEntry{"a", "3fs:///m/a", true, true});
  CHECK(config.registries[1] == RegistryEntry{"b", "file:///srv/b", false, false});
  CHECK(Config::parse("", "f").registries.empty());
  CHECK(Config::parse("registries:\n", "f").registries.empty());
}

TEST_CASE("contexts are kept beside what else the file has, and one of them may be the default", "[base][config]") {
  OwnConfig own;
  own.write("# mine\nregistries:\n  a: file:///srv/a\n");
  add_context_entry({"lab", "unix:/run/edge.sock", ""});
  add_context_entry({"far", "http://127.0.0.1:7701", "/root/it's"});
  set_default_context("lab");
  Config config = Config::load();
  REQUIRE(config.contexts.size() == 2);
  CHECK(config.contexts[0] == ContextEntry{"far", "http://127.0.0.1:7701", "/root/it's"});
  CHECK(config.contexts[1] == ContextEntry{"lab", "unix:/run/edge.sock", ""});
  CHECK(config.default_context == "lab");
  CHECK(config.registries.size() == 1);
  add_context_entry({"lab", "unix:/run/other.sock", ""});
  CHECK(Config::load().contexts[1].url == "unix:/run/other.sock");
  // What is removed is no default any more.
  CHECK(remove_context_entry("lab"));
  CHECK_FALSE(remove_context_entry("lab"));
  config = Config::load();
  CHECK(config.contexts.size() == 1);
  CHECK(config.default_context.empty());
  CHECK(read_file(own.file).starts_with("# mine\nregistries:\n  a: file:///srv/a\n"));
  for (const char* name : {"", "local", "A", "a b"}) CHECK_THROWS_AS(add_context_entry({name, "unix:/x", ""}), Error);
}

TEST_CASE("a fault in the configuration is told with its place", "[base][config]") {
  const auto message = [](const std::string& yaml) -> std::string {
    try {
      Config::parse(yaml, "f");
      return "accepted";
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return error.message();
    }
  };
  CHECK(message("registres: {}\n") == "f:1:1: unknown key 'registres'");
  CHECK(message("registries:\n  a:\n    urll: x\n") == "f:3:5: unknown key 'urll'");
  CHECK(message("registries:\n  a: {in_place: maybe}\n") == "f:2:17: true or false is expected");
  CHECK(message("registries:\n  a: {}\n") == "f:2:3: registry 'a' has no 'url'");
  CHECK(message("registries:\n  A: file:///x\n") == "f:2:3: 'A' is no valid name of a registry");
  CHECK(message("contexts:\n  a: {uri: x}\n") == "f:2:7: unknown key 'uri'");
  CHECK(message("contexts:\n  local: unix:/x\n") == "f:2:3: 'local' is no valid name of a context");
  CHECK(message("defaults: {contxt: a}\n") == "f:1:12: unknown key 'contxt'");
  CHECK(message("registries: [1]\n") == "f:1:13: a mapping of names to registries is expected");
  CHECK(message("version: 2\n") == "f:1:10: version 1 is what this dsec knows");
  CHECK(message("a: [\n").starts_with("f:2:1: no valid YAML"));
  CHECK(message("- x\n") == "f:1:1: a mapping is expected");
  CHECK(message("registries: &a\n  a: *a\n").find("an alias leads back to where it stands") != std::string::npos);
  CHECK(message("version: 1\n---\nversion: 1\n").find("f:3:1: ") == 0);
}

TEST_CASE("loading on demand is set in short and long form", "[base][config]") {
  CHECK_FALSE(Config::parse("", "f").on_demand);
  CHECK(Config::parse("on_demand: true\n", "f").on_demand->by_default);
  const OnDemandConfig settings = *Config::parse("on_demand: {timeout: 5s, cache: 2GiB}\n", "f").on_demand;
  CHECK(settings == OnDemandConfig{false, std::chrono::milliseconds(5000), 2ull << 30});
  const OnDemandConfig more = *Config::parse("on_demand: {fill: true, eager_share: 0.25}\n", "f").on_demand;
  CHECK(more.fill);
  CHECK(more.eager_share == 0.25);
  for (const char* share : {"2", "-0.1", ".nan", "half", "[1]"})
    CHECK_THROWS_WITH(Config::parse("on_demand: {eager_share: " + std::string(share) + "}\n", "f"),
                      Catch::Contains("a part of the whole is expected"));
  CHECK_THROWS_WITH(Config::parse("on_demand: {size: 1}\n", "f"), Catch::Contains("f:1:13: unknown key 'size'"));
  CHECK_THROWS_WITH(Config::parse("on_demand: [1]\n", "f"), Catch::Contains("f:1:12: true, false, or a mapping"));
}

TEST_CASE("hosts have settings of their own", "[base][config]") {
  const Config config = Config::parse(
      "hosts:\n  'h.example:5000': {plain_http: true, ca: /ca.pem, mirrors: [m.example, m2.example/path]}\n"
      "  other.example: {mirrors: one.example}\n",
      "f");
  REQUIRE(config.hosts.size() == 2);
  CHECK(config.hosts[0] == HostEntry{"h.example:5000", true, "/ca.pem", {"m.example", "m2.example/path"}});
  CHECK(config.hosts[1] == HostEntry{"other.example", std::nullopt, "", {"one.example"}});
  CHECK_THROWS_WITH(Config::parse("hosts:\n  h: {tls: no}\n", "f"), Catch::Contains("f:2:7: unknown key 'tls'"));
  CHECK_THROWS_WITH(Config::parse("hosts: [h]\n", "f"), Catch::Contains("f:1:8: a mapping of hosts"));
}

TEST_CASE("adding and removing a registry leaves the rest of the file as it is", "[base][config]") {
  OwnConfig own;
  CHECK(Config::load().registries.empty());
  add_registry_entry({"a", "file:///it's", true, false});
  CHECK(read_file(own.file) == "registries:\n  a: {url: 'file:///it''s', in_place: true}\n");
  struct stat status;
  REQUIRE(::stat(own.file.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);

  const std::string text =
      "# ours\noffline: false\n\nregistries:   # where layers live\n    # the old one\n    old:\n"
      "        url: file:///old\n\n    # the next\n    next: file:///next  # fast\n\n# end\npresets:\n  p: []\n";
  own.write(text);
  add_registry_entry({"new", "3fs:///m/x", false, true});
  std::string expected = text;
  expected.insert(expected.find("\n# end"), "    new: {url: '3fs:///m/x', allow_any_fs: true}\n");
  CHECK(read_file(own.file) == expected);
  CHECK(Config::load().registries.size() == 3);
  CHECK(remove_registry_entry("old"));
  expected.erase(expected.find("    old:"), std::string("    old:\n        url: file:///old\n").size());
  CHECK(read_file(own.file) == expected);
  CHECK_FALSE(remove_registry_entry("old"));
  CHECK(remove_registry_entry("new"));
  CHECK(remove_registry_entry("next"));
  CHECK(Config::load().registries.empty());
  CHECK_THROWS_AS(add_registry_entry({"Bad name", "file:///x"}), Error);
}

TEST_CASE("a file that cannot be edited by lines stays as it is", "[base][config]") {
  OwnConfig own;
  own.write("registries: {a: file:///a}\n");
  CHECK_THROWS_AS(add_registry_entry({"b", "file:///b"}), Error);
  CHECK(read_file(own.file) == "registries: {a: file:///a}\n");
}

}  // namespace
}  // namespace dsec
