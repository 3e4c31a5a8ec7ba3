#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/base/progress.h"
#include "core/engine/layer_store.h"
#include "core/model/layer_ref.h"
#include "layers/source.h"

namespace dsec::layers {

struct ImportOptions {
  LayerName name;
  std::string tag = "latest";        ///< empty: none
  std::string to = "/";              ///< where the source's root goes inside the layer
  std::string platform;              ///< "linux/arm64"; empty: this host's, where the input has a choice
  std::string compression = "none";  ///< "none", "lz4", "zstd"
  std::uint64_t collapse_limit = SourceOptions{}.collapse_limit;
  InputLimits limits;
  std::map<std::string, std::string> labels;
};

/// Makes a layer of a source and adds it to the store, trusted, since it was built here. On any failure nothing
/// remains. The layer's digest depends on the source and the options alone, and on the version of mkfs.erofs.
engine::StoredLayer import_layer(engine::LayerStore& store, Source& source, const ImportOptions& options,
                                 Progress& progress);

/// The same without adding it: the blobs are held by `session` alone.
LayerManifest make_layer(engine::BlobSession& session, Source& source, const ImportOptions& options,
                         Progress& progress);

/// "linux/amd64": what this host runs.
std::string host_platform();

}  // namespace dsec::layers
