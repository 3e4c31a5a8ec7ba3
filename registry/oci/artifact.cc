#include "registry/oci/artifact.h"

#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/json.h"
#include "registry/oci/client.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kShelf = "layer-";

Json descriptor(const std::string& type, const Digest& digest, std::uint64_t size) {
  return {{"mediaType", type}, {"digest", digest.str()}, {"size", size}};
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
  }
  return "";
}

std::string artifact_manifest(const LayerManifest& manifest) {
  const std::string config = manifest.canonical();
  Json layers = Json::array();
  std::set<Digest> seen;
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs)
      if (seen.insert(blob.digest).second)
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
  const Json json = parse_json(manifest, origin);
  if (!json.is_object()) throw usage_error(origin + " is no manifest");
  const auto config = json.find("config");
  if (config == json.end() || !config->is_object()) return std::nullopt;
  const auto type = config->find("mediaType");
  if (type == config->end() || *type != kLayerConfigType) return std::nullopt;
  return attempt(origin, [&] { return Digest::parse(json_string(*config, "digest")); });
}

std::string shelf_tag(const Digest& layer) { return std::string(kShelf) + layer.hex(); }

std::optional<Digest> layer_of_shelf_tag(std::string_view tag) {
  if (!tag.starts_with(kShelf)) return std::nullopt;
  tag.remove_prefix(kShelf.size());
  return Digest::valid_hex(tag) ? std::optional(Digest::parse(tag)) : std::nullopt;
}

}  // namespace dsec::registry
