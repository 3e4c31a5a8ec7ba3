#include "registry/layout/catalog.h"

#include <algorithm>

#include "registry/layout/layout.h"

namespace dsec::registry {
std::optional<Digest> read_tag(const NamedFiles& files, const LayerName& name, const std::string& tag,
                               NamedFiles::Missing missing) {
  const std::string file = tag_name(name, tag);
  auto text = files.read_file(file, kLargestTag, missing);
  if (!text) return std::nullopt;
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return attempt("tag " + quote(name.str() + ":" + tag) + " is damaged", [&] { return Digest::parse(*text); });
}

LayerManifest read_manifest(const NamedFiles& files, const Digest& layer) {
  return attempt("cannot read the manifest of " + layer.str(), [&] {
    const auto text = files.read_file(manifest_name(layer), kLargestManifest, NamedFiles::Missing::Expected);
    if (!text) throw failure("the registry does not have it");
    if (const Digest found = Digest::of(*text); found != layer)
      throw failure("its bytes are not those that were published: they have " + found.str());
    LayerManifest manifest = LayerManifest::parse(*text, layer.str());
    if (manifest.canonical() != *text) throw failure("it is not written in the canonical form");
    return manifest;
  });
}

std::optional<Digest> resolve(const NamedFiles& files, const LayerRef& ref) {
  if (!ref.digest_prefix) return read_tag(files, *ref.name, ref.tag.value_or("latest"), NamedFiles::Missing::Expected);
  const std::string& prefix = *ref.digest_prefix;
  if (prefix.size() == 64) {
    const Digest digest = Digest::parse(prefix);
    return files.has_file(manifest_name(digest), NamedFiles::Missing::Expected) ? std::optional(digest) : std::nullopt;
  }
  std::vector<Digest> found;
  for (const std::string& name : files.names(std::string(kManifests) + "/" + prefix.substr(0, 2) + "/" + prefix)) {
    const auto digest = digest_of_manifest_file(last_part(name));
    if (!digest || manifest_name(*digest) != name) continue;
    if (ref.name && read_manifest(files, *digest).name != *ref.name) continue;
    found.push_back(*digest);
  }
  return only_layer(ref, found);
}

std::vector<Digest> list_layers(const NamedFiles& files) {
  std::vector<Digest> layers;
  for (const std::string& name : files.names(std::string(kManifests) + "/"))
    if (const auto digest = digest_of_manifest_file(last_part(name)); digest && manifest_name(*digest) == name)
      layers.push_back(*digest);
  return layers;
}

std::vector<Digest> list_blobs(const NamedFiles& files) {
  std::vector<Digest> blobs;
  for (const std::string& name : files.names(std::string(kBlobs) + "/"))
    if (const std::string hex = last_part(name); Digest::valid_hex(hex) && blob_name(Digest::parse(hex)) == name)
      blobs.push_back(Digest::parse(hex));
  return blobs;
}

std::vector<CatalogTag> list_tags(const NamedFiles& files, const std::optional<LayerName>& name) {
  std::vector<CatalogTag> tags;
  for (const std::string& file : files.names(name ? tag_name(*name, "") : std::string(kTags) + "/"))
    if (const auto tag = tag_of_name(file)) tags.push_back({tag->first, tag->second});
  std::sort(tags.begin(), tags.end(), [](const auto& a, const auto& b) { return a.str() < b.str(); });
  return tags;
}

}  // namespace dsec::registry
