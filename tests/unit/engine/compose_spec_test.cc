#include "core/engine/compose_spec.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"

using namespace dsec;
using namespace dsec::engine;

namespace {

using Words = std::vector<std::string>;

StoredLayer layer(const std::string& name, ImageConfig config = {}, std::string platform = "linux/amd64") {
  LayerManifest manifest{.name = LayerName::parse(name),
                         .platform = std::move(platform),
                         .images = {},
                         .config = std::move(config),
                         .provenance = {},
                         .implicit_parents = {}};
  return {.digest = Digest::of(name), .manifest = std::move(manifest), .tags = {}, .labels = {}, .added = {}};
}

using Shelf = std::vector<StoredLayer>;

SandboxSpec compose(const Shelf& shelf, const Words& refs, SandboxSpec settings = {},
                    std::optional<Words> entrypoint = std::nullopt) {
  std::vector<StoredLayer> layers;
  for (const auto& ref : refs)
    for (const auto& candidate : shelf)
      if (candidate.manifest.name.str() == ref) layers.push_back(candidate);
  return compose_spec(layers, {.layers = {}, .settings = std::move(settings), .entrypoint = std::move(entrypoint)});
}

std::string fault(const Shelf& shelf, const Words& refs) {
  try {
    compose(shelf, refs);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("a later layer's variable replaces an earlier one and the others stay", "[engine][compose]") {
  const ImageConfig lower{.env = {"A=1", "B=2", "PATH=/low"}}, upper{.env = {"B=3", "C=4"}};
  CHECK(merge_configs(std::vector{lower, upper}).env ==
        Words{"PATH=/low", "TZ=UTC", "LANG=C.UTF-8", "A=1", "B=3", "C=4"});
}

TEST_CASE("a variable whose name begins like another is not taken for it", "[engine][compose]") {
  const ImageConfig lower{.env = {"PATH=/p", "LANG=C"}}, upper{.env = {"LANGUAGE=de"}};
  CHECK(merge_configs(std::vector{lower, upper}).env == Words{"PATH=/p", "TZ=UTC", "LANG=C", "LANGUAGE=de"});
}

TEST_CASE("a variable without a name is told to be a layer's, not the caller's", "[engine][compose]") {
  for (const std::string& wrong : {std::string("=x"), std::string("A=\0b", 4)}) {
    const ImageConfig config{.env = {wrong}};
    CHECK_THROWS_WITH(merge_configs(std::vector{config}), "cannot use what a layer's image says of its commands");
  }
}

TEST_CASE("what no layer says of PATH, zone and locale is the same for all sandboxes", "[engine][compose]") {
  CHECK(merge_configs({}).env ==
        Words{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC", "LANG=C.UTF-8"});
}

TEST_CASE("workdir, user and stop signal come from the topmost layer that has them", "[engine][compose]") {
  const ImageConfig lower{.workdir = "/a", .user = "web", .stop_signal = "SIGINT"}, upper{.workdir = "/b"};
  const ImageConfig merged = merge_configs(std::vector{lower, upper});
  CHECK(merged.workdir == "/b");
  CHECK(merged.user == "web");
  CHECK(merged.stop_signal == "SIGINT");
}

TEST_CASE("a layer's entrypoint drops the command of the layers below", "[engine][compose]") {
  const ImageConfig lower{.entrypoint = {"/low"}, .command = {"serve"}}, upper{.entrypoint = {"/up"}};
  const ImageConfig merged = merge_configs(std::vector{lower, upper});
  CHECK(merged.entrypoint == Words{"/up"});
  CHECK(merged.command.empty());
}

TEST_CASE("a layer with a command alone keeps the entrypoint below", "[engine][compose]") {
  const ImageConfig lower{.entrypoint = {"/low"}, .command = {"serve"}}, upper{.command = {"check"}};
  CHECK(main_command(merge_configs(std::vector{lower, upper}), {}) == Words{"/low", "check"});
}

TEST_CASE("arguments replace the command and not the entrypoint", "[engine][compose]") {
  const ImageConfig config{.entrypoint = {"/entry"}, .command = {"serve", "-v"}};
  CHECK(main_command(config, Words{"test"}) == Words{"/entry", "test"});
  CHECK(main_command(config, {}) == Words{"/entry", "serve", "-v"});
  CHECK(main_command({.command = {"sh"}}, {}) == Words{"sh"});
}

TEST_CASE("nothing to run is an error that says where a command goes", "[engine][compose]") {
  CHECK_THROWS_WITH(main_command({}, {}), "no command is given, and the layers have none");
}

TEST_CASE("layers are stacked by kind whatever their order", "[engine][compose]") {
  Shelf shelf({layer("base/b"), layer("workspace/w"), layer("toolkit/x"), layer("toolkit/a")});
  const SandboxSpec spec = compose(shelf, {"toolkit/x", "workspace/w", "toolkit/a", "base/b"});
  CHECK(spec.layers ==
        std::vector{Digest::of("base/b"), Digest::of("workspace/w"), Digest::of("toolkit/x"), Digest::of("toolkit/a")});
}

TEST_CASE("a stack without a base, or with two, is refused by name", "[engine][compose]") {
  Shelf shelf({layer("base/a"), layer("base/b"), layer("workspace/w"), layer("workspace/v")});
  CHECK(fault(shelf, {"workspace/w"}) == "no base layer is given");
  CHECK(fault(shelf, {"base/a", "base/b"}) == "an environment has one base, here are base/a, base/b");
  CHECK(fault(shelf, {"base/a", "workspace/w", "workspace/v"}) ==
        "an environment has one workspace, here are workspace/w, workspace/v");
  CHECK(fault(shelf, {"base/a", "base/a"}) == "an environment has one base, here are base/a, base/a");
}

TEST_CASE("the same toolkit twice is refused", "[engine][compose]") {
  Shelf shelf({layer("base/a"), layer("toolkit/t")});
  CHECK(fault(shelf, {"base/a", "toolkit/t", "toolkit/t"}) == "layer toolkit/t is given twice");
}

TEST_CASE("layers of two platforms are refused, one without a platform goes with all", "[engine][compose]") {
  Shelf shelf({layer("base/a"), layer("workspace/w", {}, "linux/arm64"), layer("toolkit/t", {}, "")});
  CHECK(fault(shelf, {"base/a", "workspace/w"}) ==
        "layer workspace/w is for linux/arm64, but base/a is for linux/amd64");
  CHECK(fault(shelf, {"base/a", "toolkit/t"}).empty());
}

TEST_CASE("what is asked for overrides the layers", "[engine][compose]") {
  Shelf shelf({layer(
      "base/b",
      {.env = {"PATH=/p", "A=1"}, .workdir = "/w", .user = "web", .entrypoint = {"/entry"}, .command = {"serve"}})});
  SandboxSpec settings;
  settings.config = {.env = {"A=2"}, .user = "root"};
  const SandboxSpec spec = compose(shelf, {"base/b"}, settings);
  CHECK(spec.config.env == Words{"PATH=/p", "TZ=UTC", "LANG=C.UTF-8", "A=2"});
  CHECK(spec.config.user == "root");
  CHECK(spec.config.workdir == "/w");
  CHECK(main_command(spec.config, {}) == Words{"/entry", "serve"});
  CHECK(main_command(compose(shelf, {"base/b"}, {}, Words{}).config, Words{"ls"}) == Words{"ls"});
  CHECK_THROWS_AS(main_command(compose(shelf, {"base/b"}, {}, Words{}).config, {}), Error);
}

namespace {

StoredLayer snapshot(const std::string& name, const Words& lowers) {
  StoredLayer made = layer(name, {}, "");
  for (const auto& lower : lowers) made.manifest.lowers.push_back(Digest::of(lower));
  return made;
}

}  // namespace

TEST_CASE("a snapshot lies over what it stands on, in its order, and below further toolkits", "[engine][compose]") {
  const Shelf shelf{layer("base/b"),
                    layer("toolkit/t"),
                    layer("toolkit/u"),
                    snapshot("snapshot/s", {"base/b", "toolkit/t"}),
                    snapshot("snapshot/r", {"base/b", "toolkit/t", "snapshot/s"}),
                    layer("workspace/w")};
  const auto order = [&](const Words& refs) { return compose(shelf, refs).layers; };
  const auto digests = [](const Words& names) {
    std::vector<Digest> result;
    for (const auto& name : names) result.push_back(Digest::of(name));
    return result;
  };
  CHECK(order({"snapshot/s", "toolkit/u", "toolkit/t", "base/b"}) ==
        digests({"base/b", "toolkit/t", "snapshot/s", "toolkit/u"}));
  CHECK(order({"snapshot/s", "snapshot/r", "base/b", "toolkit/t"}) ==
        digests({"base/b", "toolkit/t", "snapshot/s", "snapshot/r"}));
  CHECK(fault(shelf, {"snapshot/s", "base/b", "toolkit/t", "workspace/w"}) ==
        "layer workspace/w cannot be put under snapshot/s, which stands on other layers");
  CHECK(fault(shelf, {"snapshot/s", "toolkit/t"}).ends_with("which snapshot/s stands on, is missing"));
}

TEST_CASE("two snapshots that do not stand on each other are no stack", "[engine][compose]") {
  const Shelf shelf{layer("base/b"), snapshot("snapshot/s", {"base/b"}), snapshot("snapshot/r", {"base/b"})};
  CHECK(fault(shelf, {"base/b", "snapshot/s", "snapshot/r"}) ==
        "snapshots snapshot/s and snapshot/r do not stand on each other");
}
