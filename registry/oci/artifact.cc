#include "registry/oci/artifact.h"

#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/json.h"
#include "registry/layout/prefetch_list.h"
#include "registry/oci/client.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kShelf = "layer-", kPrefetchShelf = "prefetch-", kIndexShelf = "index-";
// Of what an index leads to: layers as they stand in the image.
constexpr const char* kPlainLayerType = "application/vnd.oci.image.layer.v1.tar";

std::optional<Digest> digest_behind(std::string_view prefix, std::string_view tag) {
  if (!tag.starts_with(prefix) || !Digest::valid_hex(tag.substr(prefix.size()))) return std::nullopt;
  return Digest::parse(tag.substr(prefix.size()));
}

Json descriptor(const std::string& type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", type}, {"digest", digest.str()}, {"size", size}};
}

Json empty_config() {
  const std::string empty = kEmptyConfig;
  return descriptor("application/vnd.oci.empty.v1+json", Digest::of(empty), empty.size());
}

// The digest of a manifest's first layer; empty when that is of another type, or larger.
std::optional<Digest> layer_of_type(std::string_view manifest, const char* wanted, std::uint64_t largest,
                                    const std::string& origin) {
  const Json json = parse_json(manifest, origin);
  if (!json.is_object()) throw usage_error(origin + " is no manifest");
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array() || layers->empty() || !layers->front().is_object())
    return std::nullopt;
  const Json& layer = layers->front();
  if (json_string_or(layer, "mediaType", "") != wanted || json_u64_or(layer, "size", UINT64_MAX) > largest)
    return std::nullopt;
  return attempt(origin, [&] { return Digest::parse(json_string(layer, "digest")); });
}

// The digest of a manifest's config; empty when that is of another type.
std::optional<Digest> config_of_type(std::string_view manifest, const char* wanted, const std::string& origin) {
  const Json json = parse_json(manifest, origin);
  if (!json.is_object()) throw usage_error(origin + " is no manifest");
  const auto config = json.find("config");
  if (config == json.end() || !config->is_object()) return std::nullopt;
  const auto type = config->find("mediaType");
  if (type == config->end() || *type != wanted) return std::nullopt;
  return attempt(origin, [&] { return Digest::parse(json_string(*config, "digest")); });
}

}  // namespace

std::string media_type_of(BlobRole role) {
  switch (role) {
    case BlobRole::Meta:
      return "application/vnd.dsec.layer.meta.v1";
    case BlobRole::Data:
      return "application/vnd.dsec.layer.data.v1";
    case BlobRole::Chunks:
      return "application/vnd.dsec.layer.chunks.v1";
    case BlobRole::Disk:
      return "application/vnd.dsec.layer.disk.v1";
  }
  return "";
}

std::string artifact_manifest(const LayerManifest& manifest, const std::set<Digest>& indexed) {
  const std::string config = manifest.canonical();
  Json layers = Json::array();
  std::set<Digest> seen;
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs)
      if (!indexed.contains(blob.digest) && seen.insert(blob.digest).second)
        layers.push_back(descriptor(media_type_of(blob.role), blob.digest, blob.size));
  return canonical_json(
      {{"schemaVersion", 2},
       {"mediaType", kImageManifestType},
       {"artifactType", kLayerArtifactType},
       {"config", descriptor(kLayerConfigType, Digest::of(config), config.size())},
       {"layers", layers},
       {"annotations",
        {{"org.opencontainers.image.title", manifest.name.str()}, {"org.opencontainers.image.vendor", "dsec"}}}});
}

std::optional<Digest> layer_of_artifact(std::string_view manifest, const std::string& origin) {
  return config_of_type(manifest, kLayerConfigType, origin);
}

std::string note_artifact(const Digest& text, std::uint64_t size) {
  // An artifact has at least one layer, so the text stands there as well.
  return canonical_json({{"schemaVersion", 2},
                         {"mediaType", kImageManifestType},
                         {"artifactType", kNoteType},
                         {"config", descriptor(kNoteType, text, size)},
                         {"layers", Json::array({descriptor(kNoteType, text, size)})}});
}

std::optional<Digest> note_of_artifact(std::string_view manifest, const std::string& origin) {
  return config_of_type(manifest, kNoteType, origin);
}

std::string prefetch_artifact(const LayerManifest& manifest, const std::string& list, const std::set<Digest>& indexed) {
  const std::string layer = artifact_manifest(manifest, indexed);
  return canonical_json({{"schemaVersion", 2},
                         {"mediaType", kImageManifestType},
                         {"artifactType", kPrefetchArtifactType},
                         {"config", empty_config()},
                         {"layers", Json::array({descriptor(kPrefetchArtifactType, Digest::of(list), list.size())})},
                         {"subject", descriptor(kImageManifestType, Digest::of(layer), layer.size())}});
}

std::optional<Digest> list_of_artifact(std::string_view manifest, const std::string& origin) {
  return layer_of_type(manifest, kPrefetchArtifactType, kLargestPrefetchList, origin);
}

std::string index_artifact(const DataIndex& index, const ArtifactSubject& image) {
  const std::string bytes = index.bytes();
  Json layers = Json::array({descriptor(kIndexArtifactType, Digest::of(bytes), bytes.size())});
  for (const DataIndex::Part& part : index.parts) layers.push_back(descriptor(kPlainLayerType, part.blob, part.size));
  return canonical_json({{"schemaVersion", 2},
                         {"mediaType", kImageManifestType},
                         {"artifactType", kIndexArtifactType},
                         {"config", empty_config()},
                         {"layers", std::move(layers)},
                         {"subject", descriptor(image.media_type, image.digest, image.size)}});
}

std::optional<Digest> index_of_artifact(std::string_view manifest, const std::string& origin) {
  return layer_of_type(manifest, kIndexArtifactType, kLargestDataIndex, origin);
}

std::string index_tag(const Digest& data) { return std::string(kIndexShelf) + data.hex(); }

std::optional<Digest> data_of_index_tag(std::string_view tag) { return digest_behind(kIndexShelf, tag); }

std::string prefetch_tag(const Digest& layer) { return std::string(kPrefetchShelf) + layer.hex(); }

std::string shelf_tag(const Digest& layer) { return std::string(kShelf) + layer.hex(); }

std::optional<Digest> layer_of_shelf_tag(std::string_view tag) { return digest_behind(kShelf, tag); }

}  // namespace dsec::registry
