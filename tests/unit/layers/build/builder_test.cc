#include "layers/build/builder.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "layers/build/environments.h"
#include "tests/unit/layers/build/build_fixture.h"

namespace dsec::layers {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
using engine::StoredLayer;

using Fixture = BuildFixture;

constexpr const char* kYaml = R"(version: 1
layers:
  base/a: {from: "dir:a"}
  workspace/w:
    on: base/a
    steps:
      - copy: {from: one, to: /srv/}
      - copy: {from: tree, to: /srv/tree, mode: "0600"}
      - env: {A: b}
      - workdir: /srv
  toolkit/t: {from: "dir:t", to: /opt/t}
environments:
  all: {base: base/a, workspace: workspace/w, toolkits: [toolkit/t]}
)";

TEST_CASE_METHOD(Fixture, "layers are made from sources and steps, and cached until something changes",
                 "[layers][build]") {
  write("a/etc/name", "base");
  write("one", "1");
  write("tree/x/y", "2");
  write("t/tool", "3");
  const auto first = run(kYaml);
  REQUIRE(built(first) == 3);
  CHECK(content(first[1].layer, "srv/one") == "1");
  CHECK(content(first[1].layer, "srv/tree/x/y") == "2");
  CHECK(first[1].layer.manifest.config.env == std::vector<std::string>{"A=b"});
  CHECK(first[1].layer.manifest.config.workdir == "/srv");
  CHECK(first[1].layer.manifest.provenance.built_on == first[0].layer.digest);
  CHECK(content(first[2].layer, "opt/t/tool") == "3");
  CHECK(fs::exists(project / "dsec.lock"));

  CHECK(built(run(kYaml)) == 0);
  write("one", "changed");
  const auto second = run(kYaml);
  CHECK(built(second) == 1);
  CHECK(content(second[1].layer, "srv/one") == "changed");
}

TEST_CASE_METHOD(Fixture, "a new base builds one layer again and what stands on the old one is reported",
                 "[layers][build]") {
  std::string yaml = "version: 1\nlayers:\n  base/a: {from: 'dir:a'}\n  toolkit/t: {from: 'dir:t', to: /opt/t}\n";
  std::string environments = "environments:\n";
  write("a/f", "1");
  write("t/f", "1");
  for (int i = 0; i < 50; ++i) {
    const std::string n = std::to_string(i);
    yaml += "  workspace/w" + n + ": {on: base/a, steps: [{copy: {from: w" + n + ", to: /w/}}]}\n";
    environments += "  e" + n + ": {base: base/a, workspace: workspace/w" + n + ", toolkits: [toolkit/t]}\n";
    write("w" + n, n);
  }
  yaml += environments;
  CHECK(built(run(yaml, {.jobs = 4})) == 52);
  write("a/f", "2");
  CHECK(built(run(yaml)) == 1);
  write("t/f", "2");
  CHECK(built(run(yaml)) == 1);
  const Project read = Project::parse(yaml, project / "dsec.yaml", {});
  const std::vector<std::string> drift = built_on_drift(read, *store);
  REQUIRE(drift.size() == 50);
  CHECK(drift[7].find("e7: workspace/w7 was built on ") == 0);
  CHECK(built(run(yaml, {.targets = {"e7"}, .no_cache = true})) == 3);
}

TEST_CASE_METHOD(Fixture, "a copy that would hide more than it brings is refused with what is there",
                 "[layers][build]") {
  write("base/usr/bin/sh", "x");
  write("base/etc/passwd", "x");
  fs::create_directory_symlink("usr/bin", project / "base/bin");
  write("tool", "t");
  write("tree/bin/tool", "t");
  write("etc", "t");
  const auto told = [&](const std::string& step) -> std::string {
    try {
      run("version: 1\nlayers:\n  base/a: {from: 'dir:base'}\n  workspace/w: {on: base/a, steps: [{copy: " + step +
          "}]}\n");
    } catch (const Error& error) {
      return error.message() + "; try: " + (error.hints().empty() ? "" : error.hints().front());
    }
    return "";
  };
  for (const char* step : {"{from: tool, to: /bin/tool}", "{from: tree, to: /}"})
    CHECK_THAT(told(step), Contains("a directory would take the place of '/bin', which is a symlink to 'usr/bin'") &&
                               Contains("try: write the path that the symlink leads to"));
  CHECK_THAT(told("{from: tool, to: /etc/passwd/x}"), Contains("a directory would take the place of '/etc/passwd'"));
  CHECK_THAT(told("{from: etc, to: /etc}"), Contains("a file would take the place of '/etc', which is a directory") &&
                                                Contains("try: end the path with '/'"));
  CHECK(told("{from: tool, to: /usr/bin/tool}") == "");
  CHECK(told("{from: tool, to: /bin}") == "");  // a file over a symlink is what the step says
}

TEST_CASE_METHOD(Fixture, "a later step's file wins and keeps the attributes of folders it only passes",
                 "[layers][build]") {
  write("one/f", "1");
  write("two/f", "2");
  const auto made = run(R"(version: 1
layers:
  workspace/w:
    steps:
      - copy: {from: one, to: /d}
      - copy: {from: two, to: /d}
)");
  CHECK(content(made[0].layer, "d/f") == "2");
  CHECK(made[0].layer.manifest.images.size() == 1);
}

TEST_CASE_METHOD(Fixture, "the same project at another place, with other times and modes, gives the same layers",
                 "[layers][build]") {
  const auto fill = [&](const fs::path& at) {
    write("one", "1", at);
    write("tree/x/y", "2", at);
  };
  const std::string yaml =
      "version: 1\nlayers:\n  workspace/w: {steps: [{copy: {from: one, to: /a}}, {copy: {from: tree, to: /t}}]}\n";
  fill(project);
  const Digest first = run(yaml)[0].layer.digest;
  Fixture other;
  const mode_t old = ::umask(0077);
  fill(other.project);
  ::umask(old);
  fs::last_write_time(other.project / "one", fs::file_time_type::clock::now() - std::chrono::hours(1000));
  CHECK(other.run(yaml)[0].layer.digest == first);
}

TEST_CASE_METHOD(Fixture, "a locked build refuses what the lock does not pin", "[layers][build]") {
  write("a/f", "1");
  const std::string yaml = "version: 1\nlayers:\n  base/a: {from: 'dir:a'}\n";
  CHECK_THROWS_AS(run(yaml, {.locked = true}), Error);
  const Digest locked = run(yaml)[0].layer.digest;
  CHECK(run(yaml, {.locked = true})[0].layer.digest == locked);
  write("a/f", "2");
  CHECK_THROWS_AS(run(yaml, {.locked = true}), Error);
  CHECK(built(run(yaml)) == 1);
  CHECK_THROWS_AS(run("version: 1\nlayers:\n  base/a: {from: 'dir:a', to: /x}\n", {.locked = true}), Error);
  Fixture elsewhere;
  elsewhere.write("a/f", "3");
  fs::copy_file(project / "dsec.lock", elsewhere.project / "dsec.lock");
  CHECK_THROWS_AS(elsewhere.run(yaml, {.locked = true}), Error);
  CHECK_FALSE(elsewhere.store->find(LayerRef::parse("base/a")));
}

TEST_CASE_METHOD(Fixture, "what cannot be built says which layer and step", "[layers][build]") {
  const auto message = [&](const std::string& layers, BuildOptions options = {}) {
    try {
      run("version: 1\nlayers:\n" + layers, options);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("(no error)");
  };
  const auto missing = message("  base/a: {steps: [{copy: {from: nothing, to: /x}}]}\n  base/b: {from: 'dir:none'}\n");
  CHECK(missing.find("dsec.yaml:3:34: there is no '") != std::string::npos);
  CHECK(missing.find("dsec.yaml:4:18: there is no '") != std::string::npos);
  CHECK(message("  base/a: {from: 'git:https://example.invalid/x@v1'}\n", {.offline = true}).find("needs a network") !=
        std::string::npos);
  fs::create_symlink("/etc", project / "out");
  CHECK(message("  base/a: {steps: [{copy: {from: out/passwd, to: /x}}]}\n").find("leads out of the project") !=
        std::string::npos);
  CHECK(message("  base/a: {from: 'dir:x'}\n", {.targets = {"base/b"}}).find("has no layer or environment") !=
        std::string::npos);
}

}  // namespace
}  // namespace dsec::layers
