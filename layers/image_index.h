#pragma once

#include <filesystem>
#include <string>

#include "core/base/progress.h"
#include "core/engine/image_index.h"
#include "core/engine/layer_store.h"
#include "layers/import.h"

namespace dsec::layers {

/// Makes the layer, whose blobs are then held by `session`, and the indexes of its data, each of which was followed
/// once and gave the very data. Throws Error for an image with compressed layers. `reference`:
/// "//HOST/REPOSITORY[:TAG]"; `spool`: for unlinked files.
engine::ImageIndex index_image(engine::LayerStore& store, engine::BlobSession& session, const std::string& reference,
                               const engine::OpenRemoteImage& open, const std::filesystem::path& spool,
                               const ImportOptions& options, Progress& progress);

}  // namespace dsec::layers
