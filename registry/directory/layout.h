#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/model/layer_ref.h"

namespace dsec::registry {

/// Where things lie below the root of a registry (man/dsec-registry.5.md). All are relative paths without symlinks,
/// "." or "..", made of checked names only.

inline constexpr std::string_view kMarker = "dsec-registry.json";
inline constexpr std::string_view kBlobs = "blobs/sha256";
inline constexpr std::string_view kManifests = "manifests/sha256";
inline constexpr std::string_view kTags = "tags";
inline constexpr std::string_view kLeases = "leases";

std::string blob_name(const Digest& digest);      ///< blobs/sha256/ab/ab…
std::string manifest_name(const Digest& digest);  ///< manifests/sha256/ab/ab….json
/// tags/<kind>/<name>/<tag>: '/' in a name stands as '+', which no name contains, so that a tag of a name is never in
/// the way of a longer name.
std::string tag_name(const LayerName& name, const std::string& tag);
/// The name that a folder below tags/<kind>/ stands for; empty when it is none.
std::optional<LayerName> name_of_folder(LayerKind kind, std::string folder);
/// The digest that a file of manifests/ is named after; empty when it is none.
std::optional<Digest> digest_of_manifest_file(std::string_view file);

}  // namespace dsec::registry
