#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "layers/erofs_read/erofs_image.h"
#include "layers/rebuild.h"
#include "tests/unit/layers/build/build_fixture.h"
#include "tests/unit/layers/git_repository.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using engine::StoredLayer;

struct Steps : BuildFixture {
  Rebuilt again(const StoredLayer& layer, const std::string& yaml) {
    const Project read = Project::parse(yaml, project / "dsec.yaml", {});
    return rebuild_steps(*store, layer.manifest, read, *read.layer(LayerRef::parse("workspace/w")), {}, progress);
  }
  std::string refusal(const StoredLayer& layer, const std::string& yaml) {
    try {
      again(layer, yaml);
    } catch (const Error& error) {
      return error.message();
    }
    return "(none)";
  }
};

constexpr const char* kYaml = R"(version: 1
layers:
  base/a: {from: "dir:a"}
  workspace/w:
    on: base/a
    steps:
      - git: {url: ./r, rev: main}
      - copy: {from: extra, to: /workspace/}
      - env: {A: b}
      - workdir: /workspace
      - user: "1000"
)";

TEST_CASE_METHOD(Steps, "a layer of files, commits and settings is the same when it is made again elsewhere and later",
                 "[layers][build][rebuild]") {
  TestRepository repository(project / "r");
  repository.write("src/x", "of the commit\n");
  const std::string commit = repository.commit("one");
  write("a/etc/name", "base");
  write("extra", "copied\n");
  const StoredLayer layer = run(kYaml)[1].layer;
  CHECK(content(layer, "workspace/src/x") == "of the commit\n");
  CHECK(content(layer, "workspace/extra") == "copied\n");
  CHECK(layer.manifest.provenance.inputs.at("step1.commit") == commit);
  CHECK(layer.manifest.config.user == "1000");
  CHECK(layer.manifest.provenance.steps.size() == 5);

  // Another host: a clone of the repository, the base from a registry, files written later under another umask.
  Steps there;
  there.run("version: 1\nlayers:\n  base/a: {from: 'dir:" + (project / "a").native() + "'}\n");
  const mode_t old = ::umask(0077);
  repository.git({"clone", "-q", ".", (there.project / "r").native()});
  there.write("extra", "copied\n");
  ::umask(old);
  const std::size_t layers = there.store->list().size();
  const Rebuilt same = there.again(layer, kYaml);
  CHECK(same.differences.empty());
  CHECK(same.digest == layer.digest);
  CHECK(there.store->list().size() == layers);

  // The name of the base means another layer by now; what counts is what this one was built on.
  write("a/etc/name", "other");
  CHECK(built(run(kYaml)) == 1);
  CHECK(again(layer, kYaml).differences.empty());
}

TEST_CASE_METHOD(Steps, "what made another layer of the same steps is told", "[layers][build][rebuild]") {
  TestRepository repository(project / "r");
  repository.write("x", "1");
  const std::string first = repository.commit("one");
  write("a/f", "1");
  write("extra", "1");
  const StoredLayer layer = run(kYaml)[1].layer;
  write("extra", "2");
  repository.write("x", "2");
  const std::string second = repository.commit("two");
  std::string yaml = kYaml, told;
  yaml.replace(yaml.find("A: b"), 4, "A: c");
  const Rebuilt other = again(layer, yaml);
  for (const std::string& line : other.differences) told += line + "\n";
  CHECK_THAT(told, Contains("input step1.commit: was " + first + ", is " + second) &&
                       Contains("input step2.content: was sha256:") && Contains("step 3: was sha256:") &&
                       Contains("blob of image 0 data: was sha256:") && !Contains("step 4:"));
  CHECK(other.digest != layer.digest);
}

TEST_CASE_METHOD(Steps, "steps that run commands, and a base that is gone, are no ground for a comparison",
                 "[layers][build][rebuild]") {
  write("a/f", "1");
  write("extra", "1");
  const std::string yaml =
      "version: 1\nlayers:\n  base/a: {from: 'dir:a'}\n  workspace/w: {on: base/a, steps: [{copy: {from: extra, to: "
      "/x}}]}\n";
  const StoredLayer layer = run(yaml)[1].layer;
  std::string with_run = yaml;
  with_run.replace(with_run.find("}]}"), 3, "}, {run: make}]}");
  CHECK_THAT(refusal(layer, with_run),
             Contains("cannot make workspace/w again") && Contains("step 2/2 (run: make) runs a command"));
  Steps empty;
  empty.write("extra", "1");
  CHECK_THAT(empty.refusal(layer, yaml), Contains(layer.manifest.provenance.built_on->hex().substr(0, 12)));
}

TEST_CASE_METHOD(Steps, "a copy has the mode that its step gives, and leaves out what .dsecignore names",
                 "[layers][build]") {
  write("tree/script", "#!/bin/sh\n");
  write("tree/deep/file", "1");
  write("tree/core.123", "dump");
  write("tree/deep/cache/x", "y");
  write("tree/.dsecignore", "core.*\ncache/\n");
  fs::permissions(project / "tree/script", fs::perms(0755));
  const StoredLayer layer = run(R"(version: 1
layers:
  workspace/w:
    steps:
      - copy: {from: tree, to: /plain}
      - copy: {from: tree, to: /closed, mode: "0640"}
)")[0]
                                .layer;
  CHECK(mode(layer, "plain/script") == 0755);
  CHECK(mode(layer, "plain/deep/file") == 0644);
  CHECK(mode(layer, "closed/script") == 0640);
  CHECK(mode(layer, "closed/deep/file") == 0640);
  CHECK(mode(layer, "closed/deep") == 0755);
  for (const char* path : {"plain/core.123", "plain/deep/cache", "plain/.dsecignore", "closed/core.123"})
    CHECK(content(layer, path) == "(missing)");
}

}  // namespace
}  // namespace dsec::layers
