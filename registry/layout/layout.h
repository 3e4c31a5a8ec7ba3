#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/model/layer_ref.h"

namespace dsec::registry {

/// Where things lie below the root of a registry (man/dsec-registry.5.md). All are relative paths without symlinks,
/// "." or "..", made of checked names only.

inline constexpr std::string_view kMarker = "dsec-registry.json";
inline constexpr std::string_view kBlobs = "blobs/sha256";
inline constexpr std::string_view kManifests = "manifests/sha256";
inline constexpr std::string_view kTags = "tags";
inline constexpr std::string_view kPrefetch = "prefetch/sha256";
inline constexpr std::string_view kLeases = "leases";
inline constexpr std::string_view kCatalogue = "catalogue.json";
inline constexpr std::string_view kCondemned = "condemned";
/// Of path components in the names of blobs, manifests and tags: no fewer, no more.
inline constexpr std::size_t kDepth = 4;

std::string blob_name(const Digest& digest);      ///< blobs/sha256/ab/ab…
std::string manifest_name(const Digest& digest);  ///< manifests/sha256/ab/ab….json
std::string prefetch_name(const Digest& layer);   ///< prefetch/sha256/ab/ab….json
/// tags/<kind>/<name>/<tag>: '/' in a name stands as '+', which no name contains, so that a tag of a name is never in
/// the way of a longer name.
std::string tag_name(const LayerName& name, const std::string& tag);
/// The name that a folder below tags/<kind>/ stands for; empty when it is none.
std::optional<LayerName> name_of_folder(LayerKind kind, std::string folder);
/// The tag that a file of tags/ stands for; empty when it is none.
std::optional<std::pair<LayerName, std::string>> tag_of_name(const std::string& name);
/// The digest that a file of manifests/ or prefetch/ is named after; empty when it is none.
std::optional<Digest> digest_of_manifest_file(std::string_view file);
/// The last component of a name.
std::string last_part(const std::string& name);

/// The content of the marker that makes a registry of a place, and whether one may be used: throws Error when it is of
/// another type or of a newer format.
std::string marker_text();
void check_marker_text(const std::string& text);
inline constexpr std::uint64_t kLargestMarker = 4096;
/// "sha256:" and 64 digits and a newline; anything longer is no tag.
inline constexpr std::uint64_t kLargestTag = 128;

}  // namespace dsec::registry
