#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/model/layer_manifest.h"
#include "registry/directory/registry_root.h"
#include "registry/registry.h"

namespace dsec::registry {

/// The layers of a registry. Nothing it says is believed: a manifest is returned only when its bytes have its digest.

/// What a reference names: a tag's target, or the layer of a digest or unique prefix. Empty when there is none. Throws
/// Error (Usage) for a prefix of several layers, and for a tag whose file is damaged.
std::optional<Digest> resolve(const RegistryRoot& root, const LayerRef& ref);

/// Throws Error when it is missing, has other bytes, is too large or is not valid.
LayerManifest read_manifest(const RegistryRoot& root, const Digest& layer);

/// The digest in a tag's file; empty when there is no such tag. Throws Error when it holds something else.
std::optional<Digest> read_tag(const RegistryRoot& root, const LayerName& name, const std::string& tag,
                               RegistryRoot::Missing missing);

/// All tags, sorted; files with names that no tag can have are left out.
std::vector<CatalogTag> list_tags(const RegistryRoot& root);

}  // namespace dsec::registry
