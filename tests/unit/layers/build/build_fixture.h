#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "layers/build/builder.h"
#include "layers/build/stack_lookup.h"
#include "layers/erofs_read/erofs_image.h"
#include "registry/store/local_store.h"

namespace dsec::layers {

/// A home and a project of a test's own, for builds that need no sandbox.
struct BuildFixture {
  TempDirectory scratch{std::filesystem::temp_directory_path()};
  engine::Home home = engine::Home::open(scratch.path() / "home");
  std::unique_ptr<engine::LayerStore> store = registry::make_layer_store(home);
  Progress progress;
  std::filesystem::path project = scratch.path() / "project";

  BuildFixture() { std::filesystem::create_directory(project); }

  void write(const std::string& name, const std::string& content, const std::filesystem::path& below = {}) const {
    const std::filesystem::path path = (below.empty() ? project : below) / name;
    std::filesystem::create_directories(path.parent_path());
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
  std::string content(const engine::StoredLayer& layer, const std::string& path) {
    std::vector<ErofsImage> images = open_images(layer, *store, ImageData::Wanted);
    const std::optional<ErofsInode> inode = images.back().find(path);
    if (!inode) return "(missing)";
    if (!inode->is_file()) return "(no file)";
    std::string bytes(inode->size, '\0');
    images.back().read(*inode, 0, bytes.data(), bytes.size());
    return bytes;
  }
  /// Permission bits; of what must be there.
  unsigned mode(const engine::StoredLayer& layer, const std::string& path) {
    std::vector<ErofsImage> images = open_images(layer, *store, ImageData::Unwanted);
    const std::optional<ErofsInode> inode = images.back().find(path);
    REQUIRE(inode);
    return inode->mode & 07777;
  }
};

}  // namespace dsec::layers
