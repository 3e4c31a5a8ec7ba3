#include "layers/build/builder.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/build/environments.h"
#include "layers/build/stack_lookup.h"
#include "layers/erofs_read/erofs_image.h"
#include "registry/store/local_store.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using engine::StoredLayer;

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  engine::Home home = engine::Home::open(scratch.path() / "home");
  std::unique_ptr<engine::LayerStore> store = registry::make_layer_store(home);
  Progress progress;
  fs::path project = scratch.path() / "project";

  Fixture() { fs::create_directory(project); }

  void write(const std::string& name, const std::string& content, const fs::path& below = {}) const {
    const fs::path path = (below.empty() ? project : below) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  std::vector<BuildOutcome> run(const std::string& yaml, BuildOptions options = {}) {
    const Project read = Project::parse(yaml, project / "dsec.yaml", {});
    const BuildPorts ports{*store,
                           []() -> engine::LocalEngine& {
                             FAIL("no step here needs a sandbox");
                             throw 0;
                           },
                           home.cache() / "build", progress};
    return build(read, options, ports);
  }
  static std::size_t built(const std::vector<BuildOutcome>& outcomes) {
    return static_cast<std::size_t>(std::count_if(outcomes.begin(), outcomes.end(), [](const BuildOutcome& outcome) {
      return outcome.kind == BuildOutcome::Kind::Built;
    }));
  }
  std::string content(const StoredLayer& layer, const std::string& path) {
    std::vector<ErofsImage> images = open_images(layer, *store, ImageData::Wanted);
    const std::optional<ErofsInode> inode = images.back().find(path);
    if (!inode) return "(missing)";
    if (!inode->is_file()) return "(no file)";
    std::string bytes(inode->size, '\0');
    images.back().read(*inode, 0, bytes.data(), bytes.size());
    return bytes;
  }
};

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
