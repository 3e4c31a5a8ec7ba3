#include "cli/layer_archive.h"

#include <fcntl.h>

#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/files.h"
#include "layers/compose/export_layer.h"

namespace dsec::cli {

void write_layer_archive(const std::string& ref, const std::filesystem::path& path, Invocation& call) {
  engine::LayerStore& store = call.wiring().layer_store();
  const engine::StoredLayer layer = store.get(LayerRef::parse(ref));
  const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
  layers::export_layer(store, layer, file.get(), call.progress());
}

}  // namespace dsec::cli
