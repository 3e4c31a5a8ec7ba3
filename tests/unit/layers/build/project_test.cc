#include "layers/build/project.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/lock.h"
#include "layers/build/schema.h"

namespace dsec::layers {
namespace {

Project parse(std::string_view yaml, const std::map<std::string, std::string>& args = {}) {
  return Project::parse(yaml, "dsec.yaml", args);
}

std::vector<std::string> problems(std::string_view yaml, const std::map<std::string, std::string>& args = {}) {
  try {
    parse(yaml, args);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    return {error.chain().begin() + 1, error.chain().end()};
  }
  return {};
}

constexpr const char* kWhole = R"(version: 1
layers:
  base/python:
    tag: "3.11"
    from: oci-archive:python.tar
  workspace/toolz:
    on: base/python:3.11
    steps:
      - git: {url: ./toolz, rev: 3f2c9d1, to: /workspace, history: past}
      - copy: {from: fixtures/, to: /workspace/fixtures/, mode: "0644"}
      - run: pip install --no-index -e .
        workdir: /workspace
        network: none
  toolkit/harness:
    from: dir:tools
    to: /opt/harness
environments:
  toolz-1:
    base: base/python:3.11
    workspace: workspace/toolz
    toolkits: [toolkit/harness]
    workdir: /workspace
    env: {LANG: C.UTF-8}
    backend: container
    limits: {cpus: 4, memory: 4GiB, pids: 512, disk: 10GiB, output: 64MiB}
    lifetime: {idle: 5m, idle_pause: 30s, max: 3h}
    network: {allow: [pypi], phases: {verify: none}}
    user: root
    labels: {suite: demo}
)";

TEST_CASE("the documented example is read whole", "[layers][build]") {
  const Project project = parse(kWhole);
  REQUIRE(project.layers.size() == 3);
  CHECK(project.layers[0].ref() == "base/python:3.11");
  REQUIRE(project.layers[1].steps.size() == 3);
  CHECK(std::get<RunStep>(project.layers[1].steps[2]).argv ==
        std::vector<std::string>{"/bin/sh", "-c", "pip install --no-index -e ."});
  CHECK(std::get<CopyStep>(project.layers[1].steps[1]).mode == 0644);
  const EnvironmentSpec* environment = project.environment("toolz-1");
  REQUIRE(environment);
  CHECK(environment->layers().size() == 3);
  CHECK(environment->limits.memory == 4ull << 30);
  CHECK(environment->idle == std::chrono::minutes(5));
  CHECK(environment->idle_pause == std::chrono::seconds(30));
  CHECK(environment->network.mode == NetworkMode::Policy);
  CHECK(environment->network.plan.base.allow == std::vector{NetworkRule::parse("pypi")});
  CHECK(environment->network.plan.phases.at("verify").allow.empty());
  CHECK(project.layer(LayerRef::parse("workspace/toolz")) == &project.layers[1]);
  CHECK(project.layer(LayerRef::parse("workspace/other")) == nullptr);
}

TEST_CASE("every problem is told with its place and the nearest key, not the first only", "[layers][build]") {
  const auto found = problems(R"(version: 1
layers:
  base/x:
    form: dir:x
  box/y:
    from: dir:y
environments:
  e:
    base: base/x
    limits: {memory: lots, cpus: -1}
    toolkits: toolkit/a
)");
  CHECK(found == std::vector<std::string>{
                     "dsec.yaml:4:5: unknown key 'form'; did you mean 'from'?",
                     "dsec.yaml:5:3: 'box/y' is no layer name",
                     "dsec.yaml:10:22: 'lots' is no size",
                     "dsec.yaml:10:34: '-1' is no number above 0",
                     "dsec.yaml:11:15: a list is expected here",
                 });
  for (const char* limit : {"cpus: nan", "cpus: inf", "pids: 99999999999999999999", "pids: 1.5", "pids: 0"}) {
    INFO(limit);
    CHECK(problems("version: 1\nenvironments: {e: {base: base/x, limits: {" + std::string(limit) + "}}}\n").size() ==
          1);
  }
}

TEST_CASE("what contradicts itself is refused", "[layers][build]") {
  CHECK(problems("version: 2\n") ==
        std::vector<std::string>{"dsec.yaml:1:10: version 2 is unknown; this dsec knows 1"});
  CHECK(problems("layers: {}\n") == std::vector<std::string>{"dsec.yaml:1:1: key 'version' is missing"});
  CHECK(problems("version: 1\nversion: 1\n") == std::vector<std::string>{"dsec.yaml:2:1: key 'version' stands twice"});
  CHECK(problems("version: 1\nlayers:\n  base/a: {on: base/b, steps: [{user: x}]}\n  base/b: {on: base/a, steps: "
                 "[{user: x}]}\n")
            .size() == 2);
  CHECK(problems("version: 1\nlayers:\n  base/a: {steps: [{run: x}]}\n").size() == 1);
  CHECK(problems("version: 1\nlayers:\n  base/a: {steps: [{copy: {from: ../x, to: y}}]}\n").size() == 2);
  CHECK(problems("version: 1\nlayers:\n  base/a: {steps: [{copy: {from: x, to: /y, mode: rw}}]}\n").size() == 1);
  CHECK(problems("version: 1\nlayers:\n  base/a: {steps: [{env: {A: b}, user: x}]}\n").size() == 1);
  CHECK(problems("version: 1\nlayers:\n  base/a: {from: 3}\n  base/b: {from: 'dri:x'}\n") ==
        std::vector<std::string>{"dsec.yaml:3:18: '3' is no source; see man dsec-sources",
                                 "dsec.yaml:4:18: 'dri:x' is no source; did you mean dir:?"});
  CHECK(problems("version: 1\nlayers: [\n").size() == 1);
  CHECK(problems("- a\n").size() == 1);
  CHECK(problems("").size() == 1);
  CHECK(problems(std::string(10000, '[')).size() == 1);
}

TEST_CASE("a command and a host name are text of their kind", "[layers][build]") {
  CHECK(
      problems(
          "version: 1\nlayers:\n  base/a: {on: base/b, steps: [{run: 5}, {run: yes}, {run: '5'}, {run: [a, 5]}]}\n") ==
      std::vector<std::string>{"dsec.yaml:3:38: '5' is no command; put it in quotes if it is meant as one",
                               "dsec.yaml:3:48: 'yes' is no command; put it in quotes if it is meant as one"});
  CHECK(problems("version: 1\nlayers:\n  base/a: {on: base/b, steps: [{run: '${X}'}, {run: $X}]}\n", {{"X", "true"}})
            .empty());
  CHECK(
      problems(
          "version: 1\nenvironments:\n  e: {base: base/a, hostname: a b}\n  f: {base: base/a, hostname: web-1.x}\n") ==
      std::vector<std::string>{"dsec.yaml:3:31: 'a b' is no valid host name"});
}

TEST_CASE("variables come from --arg or their default", "[layers][build]") {
  const char* yaml = "version: 1\nlayers:\n  base/a: {from: 'dir:${WHERE}/${SUB:-sub}/$${HOME}'}\n";
  const Project project = parse(yaml, {{"WHERE", "here"}});
  CHECK(project.layers[0].from == "dir:here/sub/${HOME}");
  CHECK(project.args == std::map<std::string, std::string>{{"WHERE", "here"}});
  CHECK(problems(yaml).size() == 1);
  CHECK(problems(yaml, {{"WHERE", "x"}, {"WERE", "y"}}) ==
        std::vector<std::string>{"dsec.yaml:1:1: --arg WERE is used nowhere as ${WERE}"});
}

TEST_CASE("comments and places do not change a recipe's digest, steps do", "[layers][build]") {
  const Project one = parse("version: 1\nlayers:\n  base/a: {from: dir:x}\n");
  const Project two = parse("# ours\nversion: 1\n\nlayers:\n  base/a:\n    from: dir:x # here\n");
  const Project three = parse("version: 1\nlayers:\n  base/a: {from: dir:y}\n");
  CHECK(one.layers[0].digest() == two.layers[0].digest());
  CHECK(one.layers[0].digest() != three.layers[0].digest());
}

TEST_CASE("the JSON Schema names every key that the checker accepts", "[layers][build]") {
  const Json schema = project_json_schema();
  CHECK(schema["properties"].contains("layers"));
  CHECK(schema["properties"]["layers"]["additionalProperties"]["properties"].contains("steps"));
  CHECK(schema["properties"]["environments"]["additionalProperties"]["required"] == Json::array({"base"}));
}

TEST_CASE("a lock survives its text and a newer one is refused", "[layers][build]") {
  Lock lock;
  lock.builder = "0.1.0";
  lock.mkfs = "1.9.4";
  lock.kernel = "6.1";
  lock.platform = "linux/amd64";
  lock.args = {{"A", "b"}};
  lock.layers.emplace("base/a:latest", LockedLayer{Digest::of("a"), {{"image", "sha256:1"}}, "r"});
  lock.environments["e"] = {Digest::of("a")};
  CHECK(Lock::parse(lock.str(), "dsec.lock") == lock);
  CHECK_THROWS_AS(Lock::parse("{\"version\":2}", "dsec.lock"), Error);
  CHECK_THROWS_AS(Lock::parse("{\"version\":1,\"builder\":3}", "dsec.lock"), Error);
}

}  // namespace
}  // namespace dsec::layers
