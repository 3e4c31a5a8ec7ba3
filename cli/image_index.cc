#include "cli/image_index.h"

#include "cli/wiring.h"
#include "layers/image_index.h"

namespace dsec::cli {

engine::ImageIndex index_image(Wiring& wiring, engine::BlobSession& session, const LayerRef& layer,
                               const std::string& reference, const std::string& platform, Progress& progress) {
  layers::ImportOptions wanted{.name = layer.name.value(), .tag = layer.tag.value()};
  wanted.platform = platform;
  return layers::index_image(wiring.layer_store(), session, reference, wiring.images(), wiring.home().cache(), wanted,
                             progress);
}

}  // namespace dsec::cli
