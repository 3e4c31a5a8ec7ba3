#pragma once

#include <string>

#include "core/base/progress.h"
#include "core/engine/image_index.h"
#include "core/engine/layer_store.h"
#include "core/model/layer_ref.h"

namespace dsec::cli {

class Wiring;

/// layers::index_image() with the parts of `wiring`. `reference`: "//HOST/REPOSITORY[:TAG|@DIGEST]"; `platform`: empty
/// is this host's.
engine::ImageIndex index_image(Wiring& wiring, engine::BlobSession& session, const LayerRef& layer,
                               const std::string& reference, const std::string& platform, Progress& progress);

}  // namespace dsec::cli
