#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/model/layer_manifest.h"
#include "registry/layout/named_files.h"
#include "registry/registry.h"

namespace dsec::registry {

/// The layers of a registry. Nothing it says is believed: a manifest is returned only when its bytes have its digest.

/// What a reference names: a tag's target, or the layer of a digest or unique prefix. Empty when there is none. Throws
/// Error (Usage) for a prefix of several layers, and for a tag whose file is damaged.
std::optional<Digest> resolve(const NamedFiles& files, const LayerRef& ref);

/// Throws Error when it is missing, has other bytes, is too large or is not valid.
LayerManifest read_manifest(const NamedFiles& files, const Digest& layer);

/// The digest in a tag's file; empty when there is no such tag. Throws Error when it holds something else.
std::optional<Digest> read_tag(const NamedFiles& files, const LayerName& name, const std::string& tag,
                               NamedFiles::Missing missing);

/// The layers that have a manifest; sorted.
std::vector<Digest> list_layers(const NamedFiles& files);

/// The blobs that lie there; sorted.
std::vector<Digest> list_blobs(const NamedFiles& files);

/// All tags, or those of one name; sorted. Files with names that no tag can have are left out.
std::vector<CatalogTag> list_tags(const NamedFiles& files, const std::optional<LayerName>& name);

}  // namespace dsec::registry
