#include "registry/layout/layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/model/layer_manifest.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kManifestSuffix = ".json";
constexpr int kSchema = 1;
constexpr const char* kType = "dsec-registry";

std::string shelved(std::string_view top, const Digest& digest) {
  return std::string(top) + "/" + digest.hex().substr(0, 2) + "/" + digest.hex();
}

}  // namespace

std::string blob_name(const Digest& digest) { return shelved(kBlobs, digest); }
std::string manifest_name(const Digest& digest) { return shelved(kManifests, digest) + std::string(kManifestSuffix); }

std::string prefetch_name(const Digest& layer) { return shelved(kPrefetch, layer) + std::string(kManifestSuffix); }

std::string tag_name(const LayerName& name, const std::string& tag) {
  std::string folder = name.name;
  std::replace(folder.begin(), folder.end(), '/', '+');
  return std::string(kTags) + "/" + std::string(to_string(name.kind)) + "/" + folder + "/" + tag;
}

std::optional<LayerName> name_of_folder(LayerKind kind, std::string folder) {
  if (folder.find('/') != std::string::npos) return std::nullopt;
  std::replace(folder.begin(), folder.end(), '+', '/');
  try {
    return LayerName::parse(std::string(to_string(kind)) + "/" + folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::pair<LayerName, std::string>> tag_of_name(const std::string& name) {
  const std::string top = std::string(kTags) + "/";
  const std::size_t kind_end = name.find('/', top.size()), folder_end = name.find('/', kind_end + 1);
  if (!name.starts_with(top) || kind_end == std::string::npos || folder_end == std::string::npos) return std::nullopt;
  const auto kind = parse_layer_kind(name.substr(top.size(), kind_end - top.size()));
  const std::string tag = name.substr(folder_end + 1);
  if (!kind || !valid_tag(tag)) return std::nullopt;
  const auto layer = name_of_folder(*kind, name.substr(kind_end + 1, folder_end - kind_end - 1));
  if (!layer) return std::nullopt;
  return std::pair(*layer, tag);
}

std::optional<Digest> digest_of_manifest_file(std::string_view file) {
  if (!file.ends_with(kManifestSuffix)) return std::nullopt;
  file.remove_suffix(kManifestSuffix.size());
  if (!Digest::valid_hex(file)) return std::nullopt;
  return Digest::parse(file);
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string marker_text() { return canonical_json({{"type", kType}, {"schema", kSchema}}) + "\n"; }

void check_marker_text(const std::string& text) {
  const Json json = parse_json(text, kMarker);
  if (json_string(json, "type") != kType) throw usage_error(std::string(kMarker) + " is of another type");
  if (const std::uint64_t schema = json_u64(json, "schema"); schema != kSchema)
    throw failure("it has format " + std::to_string(schema) + ", this dsec knows " + std::to_string(kSchema))
        .hint("use a newer dsec");
}

}  // namespace dsec::registry
