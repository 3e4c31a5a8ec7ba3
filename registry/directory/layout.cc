#include "registry/directory/layout.h"

#include <algorithm>

#include "core/base/error.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kManifestSuffix = ".json";

std::string shelved(std::string_view top, const Digest& digest) {
  return std::string(top) + "/" + digest.hex().substr(0, 2) + "/" + digest.hex();
}

}  // namespace

std::string blob_name(const Digest& digest) { return shelved(kBlobs, digest); }
std::string manifest_name(const Digest& digest) { return shelved(kManifests, digest) + std::string(kManifestSuffix); }

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

std::optional<Digest> digest_of_manifest_file(std::string_view file) {
  if (!file.ends_with(kManifestSuffix)) return std::nullopt;
  file.remove_suffix(kManifestSuffix.size());
  if (!Digest::valid_hex(file)) return std::nullopt;
  return Digest::parse(file);
}

}  // namespace dsec::registry
