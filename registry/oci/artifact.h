#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/model/layer_manifest.h"

namespace dsec::registry {

/// A layer as an artifact of image-spec 1.1 (man/dsec-oci.5.md): its config is the layer's manifest, so that the
/// config's digest is the layer's, and its layers are the layer's blobs. The same layer always gives the same bytes.

inline constexpr const char* kLayerArtifactType = "application/vnd.dsec.layer.v1";
inline constexpr const char* kLayerConfigType = "application/vnd.dsec.layer.config.v1+json";
/// "application/vnd.dsec.layer.data.v1".
std::string media_type_of(BlobRole role);

std::string artifact_manifest(const LayerManifest& manifest);
/// The layer that such a manifest is of; empty when it is something else: an image, an index. Throws Error when it is
/// no manifest at all.
std::optional<Digest> layer_of_artifact(std::string_view manifest, const std::string& origin);

/// The tag under which a layer stands in the repository of all layers, and back.
std::string shelf_tag(const Digest& layer);
std::optional<Digest> layer_of_shelf_tag(std::string_view tag);

}  // namespace dsec::registry
