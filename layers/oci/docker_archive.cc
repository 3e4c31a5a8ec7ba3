#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_reader.h"
#include "layers/oci/image_source.h"

namespace dsec::layers {
namespace {

constexpr std::uint64_t kDocument = 4 << 20;

std::vector<std::string> strings_of(const Json& image, const char* key) {
  const auto found = image.is_object() ? image.find(key) : image.end();
  std::vector<std::string> out;
  if (found == image.end() || found->is_null()) return out;
  if (!found->is_array()) throw refusal(Refusal::Damaged, "manifest.json: " + quote(key) + " is no list");
  for (const Json& item : *found) {
    if (!item.is_string())
      throw refusal(Refusal::Damaged, "manifest.json: " + quote(key) + " holds something else than strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

/// As docker shows it: "docker.io/library/name" is "name", and without a tag it means "name:latest". Podman saves the
/// long form of what its users call by the short one.
std::string familiar(std::string_view reference) {
  for (const std::string_view implied : {"docker.io/", "library/"})
    if (reference.starts_with(implied)) reference.remove_prefix(implied.size());
  const std::size_t slash = reference.rfind('/');
  const bool tagged = reference.find(':', slash == std::string_view::npos ? 0 : slash) != std::string_view::npos;
  return std::string(reference) + (tagged ? "" : ":latest");
}

const Json& choose(const Json& images, const std::string& reference) {
  std::string listed;
  for (const Json& image : images) {
    for (const std::string& tag : strings_of(image, "RepoTags")) {
      if (!reference.empty() && familiar(tag) == familiar(reference)) return image;
      listed += (listed.empty() ? "" : ", ") + tag;
    }
  }
  if (reference.empty()) {
    if (images.size() == 1) return images.front();
    throw refusal(Refusal::ReferenceMissing, "it holds " + std::to_string(images.size()) + " images")
        .hint("name one after the path: " + listed);
  }
  throw refusal(Refusal::ReferenceMissing, "it holds no image " + quote(reference)).hint("it holds " + listed);
}

/// The digest in the name of a config: "<hex>.json" or "blobs/sha256/<hex>".
std::optional<Digest> digest_in_name(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/') + 1);
  if (name.ends_with(".json")) name.remove_suffix(5);
  if (!Digest::valid_hex(name)) return std::nullopt;
  return Digest::parse(name);
}

}  // namespace

FoundImage find_in_docker_archive(const ImageFiles& files, const std::string& reference) {
  const auto list = files.find("manifest.json");
  if (!list) {
    Error error = refusal(Refusal::NoImage, "there is no manifest.json, so this is no docker archive");
    if (files.find("index.json")) error.hint("oci-archive:, since there is an index.json");
    throw error;
  }
  const Json images = parse_document(list->read(kDocument), "manifest.json");
  if (!images.is_array() || images.empty()) throw refusal(Refusal::NoImage, "manifest.json lists no image");
  const Json& image = choose(images, reference);

  const auto file = [&](const std::string& path, const std::string& what) {
    auto span = files.find(normal_path(path, InputLimits{}));
    if (!span) throw refusal(Refusal::BlobMissing, what + " " + quote(path) + " is not there");
    return *span;
  };
  const auto config_name = image.is_object() ? image.find("Config") : image.end();
  if (config_name == image.end() || !config_name->is_string())
    throw refusal(Refusal::Damaged, "manifest.json: an image has no 'Config'");
  const std::string config_path = config_name->get<std::string>();
  const std::string config = file(config_path, "config").read(kDocument);
  if (const auto digest = digest_in_name(config_path); digest && *digest != Digest::of(config))
    throw refusal(Refusal::DigestMismatch,
                  "config " + quote(config_path) + " has the digest " + Digest::of(config).str());

  FoundImage found{ImageDocument::parse(config, "config " + quote(config_path)), {}, {}};
  const std::vector<std::string> layers = strings_of(image, "Layers");
  if (layers.size() != found.document.diff_ids.size())
    throw refusal(Refusal::DiffIdMismatch, "manifest.json lists " + std::to_string(layers.size()) +
                                               " layers, but the config has diff_ids for " +
                                               std::to_string(found.document.diff_ids.size()));
  for (std::size_t i = 0; i < layers.size(); ++i)
    found.layers.push_back(
        {"layer " + std::to_string(i + 1) + " of " + std::to_string(layers.size()) + " (" + layers[i] + ")",
         file(layers[i], "layer"), std::nullopt});
  return found;
}

}  // namespace dsec::layers
