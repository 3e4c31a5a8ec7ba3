#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/model/data_index.h"
#include "core/model/layer_manifest.h"

namespace dsec::registry {

/// A layer as an artifact of image-spec 1.1 (man/dsec-oci.5.md): its config is the layer's manifest, so that the
/// config's digest is the layer's, and its layers are the layer's blobs. The same layer always gives the same bytes.

inline constexpr const char* kLayerArtifactType = "application/vnd.dsec.layer.v1";
inline constexpr const char* kLayerConfigType = "application/vnd.dsec.layer.config.v1+json";
inline constexpr const char* kNoteType = "application/vnd.dsec.note.v1+json";
/// "application/vnd.dsec.layer.data.v1".
std::string media_type_of(BlobRole role);

/// `indexed`: data blobs that the registry has only as parts of others, and which the artifact cannot name.
std::string artifact_manifest(const LayerManifest& manifest, const std::set<Digest>& indexed = {});
/// The layer that such a manifest is of; empty when it is something else: an image, an index. Throws Error when it is
/// no manifest at all.
std::optional<Digest> layer_of_artifact(std::string_view manifest, const std::string& origin);

/// The prefetch list of a layer as an artifact whose subject the layer is, and whose one layer is the list.
inline constexpr const char* kPrefetchArtifactType = "application/vnd.dsec.prefetch.v1+json";
inline constexpr const char* kEmptyConfig = "{}";
std::string prefetch_artifact(const LayerManifest& manifest, const std::string& list,
                              const std::set<Digest>& indexed = {});
/// The list in such a manifest; empty when it is something else. Throws Error when it is no manifest at all.
std::optional<Digest> list_of_artifact(std::string_view manifest, const std::string& origin);
std::string prefetch_tag(const Digest& layer);
/// A note (registry/layout/notes.h) as an artifact: its config is the text.
std::string note_artifact(const Digest& text, std::uint64_t size);
/// The text of such a manifest; empty when it is something else.
std::optional<Digest> note_of_artifact(std::string_view manifest, const std::string& origin);

/// The index of a data blob as an artifact: its layers are the index and the blobs that it leads to, which the registry
/// keeps for its sake, and its subject is the image that they are layers of.
inline constexpr const char* kIndexArtifactType = "application/vnd.dsec.index.v1";
struct ArtifactSubject {
  Digest digest;
  std::uint64_t size;
  std::string media_type;
};
std::string index_artifact(const DataIndex& index, const ArtifactSubject& image);
/// The index in such a manifest; empty when it is something else. Throws Error when it is no manifest at all.
std::optional<Digest> index_of_artifact(std::string_view manifest, const std::string& origin);
std::string index_tag(const Digest& data);
/// The data blob whose index has this tag; empty for another tag.
std::optional<Digest> data_of_index_tag(std::string_view tag);

/// The tag under which a layer stands in the repository of all layers, and back.
std::string shelf_tag(const Digest& layer);
std::optional<Digest> layer_of_shelf_tag(std::string_view tag);

}  // namespace dsec::registry
