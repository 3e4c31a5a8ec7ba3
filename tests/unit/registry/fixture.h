#pragma once

#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/engine/home.h"
#include "registry/store/local_store.h"

namespace dsec::registry::test {

namespace fs = std::filesystem;

/// A store in a home of its own.
struct Scratch {
  TempDirectory directory{fs::temp_directory_path()};
  engine::Home home = engine::Home::open(directory.path() / "home");
  LocalStore store{home};

  fs::path registry_path(const std::string& name = "registry") const { return directory.path() / name; }
  std::string registry_url(const std::string& name = "registry") const {
    return "file://" + registry_path(name).native();
  }
};

/// A layer of one image whose meta and data blobs hold the given bytes; returns its manifest, the blobs held by
/// `session`.
LayerManifest put_blobs(engine::BlobSession& session, const std::string& name, const std::string& meta,
                        const std::string& data);
/// The same, added to the store.
engine::StoredLayer put_layer(LocalStore& store, const std::string& name, const std::string& tag,
                              const std::string& meta, const std::string& data);
LayerRef named(const std::string& text);

/// Names of all files below `directory`, relative and sorted.
std::vector<std::string> files_below(const fs::path& directory);
/// Names of temporary files below `directory`.
std::vector<std::string> temp_files_below(const fs::path& directory);
std::string random_bytes(std::size_t size, unsigned seed);

/// Rounds of a race or crash test: ten times as many when DSEC_TEST_LONG is set.
int rounds(int plain);

}  // namespace dsec::registry::test
