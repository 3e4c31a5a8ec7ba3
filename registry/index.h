#pragma once

#include <cstdint>
#include <string>

#include "core/base/progress.h"
#include "core/engine/image_index.h"
#include "registry/publish.h"

namespace dsec::registry {

/// The registry that an image's own repository is: "//HOST/REPOSITORY[:TAG|@DIGEST]" as `docker:` sources have it.
RegistryAddress registry_beside(const std::string& image);

struct IndexResult {
  std::uint64_t bytes_copied = 0;
  std::uint64_t bytes_in_image = 0;  ///< of data that is nowhere else in the registry
};

/// Publishes the layer with a tag into the repository of its image: all but data blobs, of which there are the indexes
/// instead, unless the registry has them whole already. The store has the blobs of the layer. May be repeated. Throws
/// Error.
IndexResult publish_index(LocalStore& store, const engine::ImageIndex& made, const std::string& tag,
                          const RegistryAddress& address, Progress& progress);

}  // namespace dsec::registry
