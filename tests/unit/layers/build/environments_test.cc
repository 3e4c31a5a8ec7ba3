#include "layers/build/environments.h"

#include "layers/build/recipe_inputs.h"
#include "layers/build/references.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "tests/support/test_store.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using engine::StoredLayer;

class QuietMounter final : public engine::LayerMounter {
 public:
  std::vector<engine::StackConflict> found;
  engine::LayerStack open(std::span<const StoredLayer>, bool) override { return {}; }
  engine::LayerStack files(std::span<const StoredLayer>, bool) override { return {}; }
  engine::BootDisk disk(std::span<const StoredLayer>) override { return {}; }
  std::vector<engine::StackConflict> conflicts(std::span<const StoredLayer>) override { return found; }
  void mount_at(std::span<const StoredLayer>, const fs::path&) override {}
  void unmount_at(const fs::path&) override {}
  std::size_t unmount_unused(std::span<const Digest>) override { return 0; }
};

struct Fixture {
  TempDirectory scratch{fs::temp_directory_path()};
  testing::TestStore store{scratch.path() / "store"};
  QuietMounter mounter;

  Project project(const std::string& yaml) const { return Project::parse(yaml, scratch.path() / "dsec.yaml", {}); }
  static constexpr const char* kYaml = R"(version: 1
layers:
  base/a: {tag: "1", from: dir:a}
  workspace/w: {on: base/a, steps: [{copy: {from: w, to: /w}}]}
environments:
  one: {base: base/a, workspace: workspace/w, toolkits: [toolkit/t:9]}
)";
  // As a build would lock it: with what identifies the files there are now.
  Lock locked(const Project& project) {
    Lock lock = make_lock(project, store);
    Progress silent;
    for (const LayerRecipe& recipe : project.layers)
      lock.layers.at(recipe.ref()).inputs = input_digests(recipe, open_inputs(project, recipe, {}, silent));
    return lock;
  }
  void fill() {
    for (const char* name : {"a/f", "w/f"}) {
      std::filesystem::create_directory((scratch.path() / name).parent_path());
      write_file_atomic(scratch.path() / name, "one");
    }
    const Digest base = store.put("base/a:1");
    store.put("workspace/w:latest", base);
    store.put("toolkit/t:9");
  }
};

TEST_CASE_METHOD(Fixture, "a lock pins the environment although its tags move on", "[layers][build]") {
  fill();
  const Project read = project(kYaml);
  write_lock(read, make_lock(read, store), store);
  CHECK(store.locks.at(scratch.path() / "dsec.lock").size() == 6);
  const Digest locked = store.layers.at("base/a:1").digest;
  StoredLayer old = store.layers.at("base/a:1");
  store.layers.insert_or_assign("base/old:1", old);
  const Digest moved = store.put("base/a:1", std::nullopt, "new");

  CHECK(resolve_environment(read, read_lock(read), "one", store).layers[0].digest == locked);
  CHECK(resolve_environment(read, std::nullopt, "one", store).layers[0].digest == moved);
}

TEST_CASE_METHOD(Fixture, "everything that is missing is named at once", "[layers][build]") {
  const Project read = project(kYaml);
  try {
    make_lock(read, store);
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    const std::string file = read.file.native();
    CHECK(error.message() == "base/a:1 is not in the store: workspace/w:latest is not in the store: " + file +
                                 ":6:58: 'toolkit/t:9' is neither made by this file nor in the store");
  }
  CHECK_THROWS_AS(resolve_environment(read, std::nullopt, "two", store), Error);
}

TEST_CASE_METHOD(Fixture, "references to nothing are told with their places and the nearest names", "[layers][build]") {
  store.put("toolkit/tool:9");
  const Project read = project(R"(version: 1
layers:
  base/a: {tag: "1", from: dir:a}
  workspace/w: {on: base/b:1, steps: [{copy: {from: w, to: /w}}]}
environments:
  one: {base: base/a:2, workspace: workspace/w, toolkits: [toolkit/tool:9, toolkit/tol:9]}
)");
  const auto texts = [&](const WhichReferences& which) {
    std::vector<std::string> found;
    for (const Problem& problem : dangling_references(read, store, which)) found.push_back(to_string("f", problem));
    return found;
  };
  const std::vector<std::string> all = {
      "f:4:21: 'base/b:1' is neither made by this file nor in the store; did you mean base/a:1?",
      "f:6:15: 'base/a:2' is neither made by this file nor in the store; did you mean base/a:1?",
      "f:6:76: 'toolkit/tol:9' is neither made by this file nor in the store; did you mean toolkit/tool:9?"};
  CHECK(texts({}) == all);
  CHECK(texts([](const LayerReference& reference) { return reference.by == "workspace/w:latest"; }) ==
        std::vector<std::string>{all[0]});
  CHECK_THROWS_WITH(refuse_dangling_references(read, store), Catch::Contains("has 3 problems"));
}

TEST_CASE_METHOD(Fixture, "a lock has the name of its project's file", "[layers][build]") {
  fill();
  const Project other = Project::parse(kYaml, scratch.path() / "other.yaml", {});
  write_lock(other, make_lock(other, store), store);
  CHECK(store.locks.contains(scratch.path() / "other.lock"));
  CHECK(read_lock(other).has_value());
  CHECK_FALSE(read_lock(project(kYaml)).has_value());
}

TEST_CASE_METHOD(Fixture, "a check tells a changed recipe, a moved tag, drift and conflicts apart", "[layers][build]") {
  fill();
  const Project read = project(kYaml);
  const Lock lock = locked(read);
  CHECK(check_environments(read, lock, "", store, mounter).empty());

  std::string edited = kYaml;
  edited.replace(edited.find("dir:a"), 5, "dir:b");
  const auto changed = check_environments(project(edited), lock, "", store, mounter);
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].kind == EnvironmentFinding::Kind::Changed);
  CHECK(changed[0].subject == "base/a:1");

  write_file_atomic(scratch.path() / "w/f", "two");
  const auto edited_file = check_environments(read, lock, "", store, mounter);
  REQUIRE(edited_file.size() == 1);
  CHECK(edited_file[0].text == "its files are not those that were locked");
  write_file_atomic(scratch.path() / "w/f", "one");

  const StoredLayer old = store.layers.at("base/a:1");
  store.put("base/a:1", std::nullopt, "new");
  store.layers.insert_or_assign("base/old:1", old);
  const auto moved = check_environments(read, lock, "", store, mounter);
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].kind == EnvironmentFinding::Kind::Moved);

  const auto drift = check_environments(read, locked(read), "one", store, mounter);
  REQUIRE(drift.size() == 1);
  CHECK(drift[0].kind == EnvironmentFinding::Kind::Drift);

  mounter.found = {{"bin", "base/a", "toolkit/t", "a directory over a symlink"}};
  CHECK(check_environments(read, lock, "one", store, mounter).back().text ==
        "'bin': a directory over a symlink, of toolkit/t over base/a");
}

}  // namespace
}  // namespace dsec::layers
