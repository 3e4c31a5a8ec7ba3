#include "layers/build/project.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/function_language.h"
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
  CHECK(problems("version: 1\nlayers:\n  base/a: {from: 'git:r?history=none', history: past}\n") ==
        std::vector<std::string>{"dsec.yaml:3:49: `from` has a history already"});
  CHECK(problems("version: 1\nlayers:\n  base/a: {from: 'dir:r', platform: amd64}\n") ==
        std::vector<std::string>{"dsec.yaml:3:37: 'amd64' is no platform"});
  CHECK(problems("version: 1\nlayers: [\n").size() == 1);
  CHECK(problems("- a\n").size() == 1);
  CHECK(problems("").size() == 1);
  CHECK(problems(std::string(10000, '[')).size() == 1);
}

TEST_CASE("a language gives what a function does not say itself", "[layers][build]") {
  const auto function = [](const std::string& keys) {
    return "version: 1\nenvironments: {e: {base: base/x}}\nfunctions: {f: {environment: e, " + keys + "}}\n";
  };
  const auto parsed = [&](const std::string& keys) { return parse(function(keys)).functions.at(0); };
  using Words = std::vector<std::string>;
  const FunctionSpec python = parsed("language: python");
  CHECK(python.command == Words{"python3", "main.py"});
  CHECK(python.compile.empty());
  CHECK(python.warm_up == Words{"python3", "-c", "pass"});
  const FunctionSpec c = parsed("language: c, compile: [clang, main.c, -o, main], compile_limits: {time: 30s}");
  CHECK(c.command == Words{"./main"});
  CHECK(c.compile == Words{"clang", "main.c", "-o", "main"});
  CHECK(parsed("language: python, command: [pypy3, main.py]").command == Words{"pypy3", "main.py"});
  // Each language runs the file that it names, or what it compiles from it.
  for (const FunctionLanguage& each : function_languages()) {
    const Words& reads = each.compile.empty() ? each.command : each.compile;
    CHECK(std::count(reads.begin(), reads.end(), each.file) == 1);
    CHECK(parsed("language: " + each.name).command == each.command);
  }
  CHECK(problems(function("language: pyton"))[0].find("did you mean 'python'?") != std::string::npos);
  CHECK(problems(function("pool: 1"))[0].find("key 'command' is missing, or 'language'") != std::string::npos);
  CHECK(problems(function("language: go, preload: true"))[0].find("anything to compile") != std::string::npos);
  CHECK(problems(function("language: sh, preload: true"))[0].find("has brought its program") != std::string::npos);
  CHECK(problems(function("language: sh, compile_limits: {time: 1s}"))[0].find("no `compile`") != std::string::npos);
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

TEST_CASE("what an alias stands for is read once, wherever it is met", "[layers][build]") {
  const Project project = parse(R"(version: 1
layers:
  base/a: {from: &source 'dir:${WHERE}/$${HOME}', labels: &labels {team: x}}
  base/b: {from: *source, labels: *labels}
)",
                                {{"WHERE", "here"}});
  for (const LayerRecipe& layer : project.layers) {
    CHECK(layer.from == "dir:here/${HOME}");
    CHECK(layer.labels.at("team") == "x");
  }
}

TEST_CASE("aliases that lead back or unfold without end are refused with their place", "[layers][build]") {
  CHECK(problems("version: 1\nlayers: &all\n  base/a: *all\n") ==
        std::vector<std::string>{"dsec.yaml:3:3: values lie in one another more than 100 deep, or an alias leads back "
                                 "to where it stands"});
  for (const char* ring : {"&x [*x]", "&x {a: [{b: *x}]}", "&x {? *x : 1}"})
    CHECK(problems("version: 1\nlayers: " + std::string(ring) + "\n").size() == 1);
  std::string bomb = "version: 1\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1), name = "a" + std::to_string(i);
    bomb += name + ": &" + name + " [";
    for (int j = 0; j < 9; ++j) bomb += below + ",";
    bomb += below + "]\n";
  }
  const std::vector<std::string> found = problems(bomb);
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("aliases unfold to too many values") != std::string::npos);
}

TEST_CASE("a file has one document", "[layers][build]") {
  CHECK(problems("version: 1\n---\nversion: 1\n") ==
        std::vector<std::string>{"dsec.yaml:3:1: a second document begins here, where one is expected"});
  CHECK(problems("---\nversion: 1\n...\n").empty());
}

TEST_CASE("what is wrong with values is told beside what is wrong with the form of others", "[layers][build]") {
  CHECK(problems(R"(version: 1
layers:
  base/a: {from: 'dri:x'}
  base/b: {form: dir:x}
  toolkit/c: {steps: [{copy: {from: ../x, to: y}}]}
environments:
  e: {base: base/a, workdir: here}
  f: {base: base/a, workdri: /here}
)") == std::vector<std::string>{"dsec.yaml:3:18: 'dri:x' is no source; did you mean dir:?",
                                "dsec.yaml:4:12: unknown key 'form'; did you mean 'from'?",
                                "dsec.yaml:5:37: '../x' leads out of the project",
                                "dsec.yaml:5:47: 'y' is no absolute path without '..'",
                                "dsec.yaml:7:30: 'here' is no absolute path without '..'",
                                "dsec.yaml:8:21: unknown key 'workdri'; did you mean 'workdir'?"});
}

TEST_CASE("layers of an environment are of the kinds that stand there, each once", "[layers][build]") {
  CHECK(problems(R"(version: 1
environments:
  a: {base: toolkit/t}
  b: {base: base/b, workspace: base/c}
  c: {base: base/b, toolkits: [workspace/w, toolkit/t, toolkit/t:latest]}
  d: {base: snapshot/s, toolkits: [toolkit/t, 3f2c9d1]}
  e: {base: base/b, workspace: workspace/w, toolkits: [toolkit/t, toolkit/u]}
)") == std::vector<std::string>{"dsec.yaml:3:13: 'toolkit/t' is a toolkit, and a base is expected here",
                                "dsec.yaml:4:32: 'base/c' is a base, and a workspace is expected here",
                                "dsec.yaml:5:32: 'workspace/w' is a workspace, and a toolkit is expected here",
                                "dsec.yaml:5:56: 'toolkit/t:latest' stands here twice"});
}

TEST_CASE("names of variables are told that can be none", "[layers][build]") {
  CHECK(problems(R"(version: 1
layers:
  base/a: {steps: [{env: {"": x}}]}
environments:
  e: {base: base/b, env: {"A=B": x, "C\0": y, D: "x\0", "E F": ok}}
)") == std::vector<std::string>{
           "dsec.yaml:3:27: '' is no name for a variable", "dsec.yaml:5:27: 'A=B' is no name for a variable",
           "dsec.yaml:5:37: 'C\\x00' is no name for a variable", "dsec.yaml:5:50: 'x\\x00' has a zero byte"});
}

TEST_CASE("every file and repository that is not there is told with its place", "[layers][build]") {
  const Project project = parse(R"(version: 1
layers:
  toolkit/a:
    steps:
      - copy: {from: nowhere/x, to: /x}
      - git: {url: ./nowhere/r, rev: v1}
      - git: {url: https://host/r, rev: v1}
      - git: {url: file://host/r, rev: v1}
  toolkit/b: {from: 'tar:nowhere/b.tar'}
  toolkit/c: {from: 'git:nowhere/c@v1'}
  toolkit/d: {from: 'dockerfile:nowhere?file=My'}
  toolkit/e: {from: 'dir:.?owner=root'}
  toolkit/f: {from: 'git:.?history=all'}
)");
  std::vector<const LayerRecipe*> all;
  for (const LayerRecipe& layer : project.layers) all.push_back(&layer);
  const auto found = [&] {
    try {
      check_files(project, all);
    } catch (const Error& error) {
      return std::vector<std::string>(error.chain().begin() + 1, error.chain().end());
    }
    return std::vector<std::string>();
  }();
  const std::string here = std::filesystem::current_path().native() + "/";
  CHECK(found == std::vector<std::string>{
                     "dsec.yaml:5:22: there is no '" + here + "nowhere/x'",
                     "dsec.yaml:6:20: there is no '" + here + "nowhere/r'",
                     "dsec.yaml:8:20: a file: URL names a file of this host, which 'file://host/r' does not",
                     "dsec.yaml:9:21: there is no '" + here + "nowhere/b.tar'",
                     "dsec.yaml:10:21: there is no '" + here + "nowhere/c'",
                     "dsec.yaml:11:21: there is no '" + here + "nowhere/My'",
                     "dsec.yaml:13:21: a git history is none, past or full, not 'all'",
                 });
}

TEST_CASE("comments and places do not change a recipe's digest, steps do", "[layers][build]") {
  const Project one = parse("version: 1\nlayers:\n  base/a: {from: dir:x}\n");
  const Project two = parse("# ours\nversion: 1\n\nlayers:\n  base/a:\n    from: dir:x # here\n");
  const Project three = parse("version: 1\nlayers:\n  base/a: {from: dir:y}\n");
  CHECK(one.layers[0].digest() == two.layers[0].digest());
  CHECK(one.layers[0].digest() != three.layers[0].digest());
}

// The table that the checker goes by, and what the schema says at the same place: the same keys, and no others.
void compare(const Shape& shape, const Json& schema, const std::string& place, std::size_t& keys) {
  INFO(place);
  switch (shape.kind) {
    case Shape::Kind::Object: {
      std::vector<std::string> checked, told, needed;
      for (const Shape::Field& field : shape.fields) {
        checked.push_back(field.name);
        if (field.required) needed.push_back(field.name);
        REQUIRE(schema.at("properties").contains(field.name));
        compare(field.shape, schema["properties"][field.name], place + "." + field.name, keys);
      }
      for (const auto& [name, ignored] : schema["properties"].items()) told.push_back(name);
      std::sort(checked.begin(), checked.end());
      CHECK(checked == told);
      CHECK(schema.value("required", std::vector<std::string>()) == needed);
      CHECK(schema["additionalProperties"] == false);
      keys += checked.size();
      return;
    }
    case Shape::Kind::Map:
      return compare(shape.of.front(), schema.at("additionalProperties"), place + ".*", keys);
    case Shape::Kind::List:
      return compare(shape.of.front(), schema.at("items"), place + "[]", keys);
    case Shape::Kind::OneOf:
      REQUIRE(schema.at("anyOf").size() == shape.of.size());
      for (std::size_t i = 0; i < shape.of.size(); ++i) compare(shape.of[i], schema["anyOf"][i], place, keys);
      return;
    default:
      if (!shape.words.empty()) CHECK(schema.at("enum") == Json(shape.words));
  }
}

TEST_CASE("the JSON Schema names every key that the checker accepts", "[layers][build]") {
  const Json schema = project_json_schema();
  std::size_t keys = 0;
  compare(project_shape(), schema, "", keys);
  CHECK(keys > 60);
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
