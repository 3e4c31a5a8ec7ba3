#include "layers/rebuild.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "core/base/error.h"
#include "layers/dir/dir_source.h"
#include "layers/import.h"
#include "layers/open_source.h"
#include "tests/support/test_store.h"
#include "tests/unit/layers/git_repository.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

engine::StoredLayer import(testing::TestStore& store, const std::string& source, const std::string& name,
                           const std::string& to) {
  Progress silent;
  return import_layer(store, *open_source(source, {}), {.name = LayerName::parse(name), .to = to}, silent);
}

TEST_CASE("a git workspace made again elsewhere, later and under another umask is the same layer",
          "[layers][rebuild][git]") {
  TempDirectory scratch(fs::temp_directory_path());
  TestRepository repository(scratch.path() / "r");
  repository.write("a/b", "one\n");
  const std::string commit = repository.commit("one");
  testing::TestStore here(scratch.path() / "here"), there(scratch.path() / "there");
  const auto layer = import(here, "git:" + repository.path().native() + "@" + commit, "workspace/x", "/workspace");
  const mode_t old = ::umask(077);
  repository.git({"clone", "-q", "--bare", ".", (scratch.path() / "other.git").native()});
  const auto source = open_source("git:" + (scratch.path() / "other.git").native() + "@main", {});
  Progress silent;
  const Rebuilt same = rebuild(there, layer.manifest, *source, silent);
  ::umask(old);
  CHECK(same.digest == layer.digest);
  CHECK(same.differences.empty());

  repository.write("a/b", "two\n");
  repository.commit("two");
  const Rebuilt other = rebuild(there, layer.manifest,
                                *open_source("git:" + repository.path().native() + "@main?history=none", {}), silent);
  std::string text;
  for (const auto& line : other.differences) text += line + "\n";
  CHECK_THAT(text, Contains("input commit: was " + commit) && Contains("option history: was past, is none") &&
                       Contains("blob of image 0 meta: was sha256:"));
}

TEST_CASE("a comparison that would say nothing is refused", "[layers][rebuild]") {
  TempDirectory scratch(fs::temp_directory_path());
  fs::create_directory(scratch.path() / "d");
  std::ofstream(scratch.path() / "d/f") << "x";
  testing::TestStore store(scratch.path() / "store");
  const std::string source = "dir:" + (scratch.path() / "d").native();
  const auto layer = import(store, source, "toolkit/x", "/");
  Progress silent;
  CHECK(rebuild(store, layer.manifest, *open_source(source, {}), silent).differences.empty());
  const auto refusal = [&](const LayerManifest& manifest) {
    try {
      rebuild(store, manifest, *open_source(source, {}), silent);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  LayerManifest manifest = layer.manifest;
  manifest.provenance.mkfs = "1.9.3-other";
  CHECK_THAT(refusal(manifest), Contains("was written by mkfs.erofs 1.9.3-other, this host has"));
  manifest = layer.manifest;
  manifest.provenance.steps = {Digest::of("run")};
  CHECK_THAT(refusal(manifest), Contains("made by build steps"));
  manifest = layer.manifest;
  manifest.provenance.source = "tar";
  CHECK_THAT(refusal(manifest), Contains("a source of the kind 'tar', not 'dir'"));
}

}  // namespace
}  // namespace dsec::layers
