#include "registry/directory/catalog.h"

#include <algorithm>

#include "registry/directory/layout.h"
#include "registry/store/local_store.h"

namespace dsec::registry {
namespace {

// "sha256:" and 64 digits and a newline; anything longer is no tag.
constexpr std::uint64_t kLargestTag = 128;

}  // namespace

std::optional<Digest> read_tag(const RegistryRoot& root, const LayerName& name, const std::string& tag,
                               RegistryRoot::Missing missing) {
  const std::string file = tag_name(name, tag);
  auto text = root.read_file(file, kLargestTag, missing);
  if (!text) return std::nullopt;
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return attempt("tag " + quote(name.str() + ":" + tag) + " is damaged", [&] { return Digest::parse(*text); });
}

LayerManifest read_manifest(const RegistryRoot& root, const Digest& layer) {
  return attempt("cannot read the manifest of " + layer.str(), [&] {
    const auto text = root.read_file(manifest_name(layer), kLargestManifest, RegistryRoot::Missing::Expected);
    if (!text) throw failure("the registry does not have it");
    if (const Digest found = Digest::of(*text); found != layer)
      throw failure("its bytes are not those that were published: they have " + found.str());
    LayerManifest manifest = LayerManifest::parse(*text, layer.str());
    if (manifest.canonical() != *text) throw failure("it is not written in the canonical form");
    return manifest;
  });
}

std::optional<Digest> resolve(const RegistryRoot& root, const LayerRef& ref) {
  if (!ref.digest_prefix) return read_tag(root, *ref.name, ref.tag.value_or("latest"), RegistryRoot::Missing::Expected);
  const std::string& prefix = *ref.digest_prefix;
  if (prefix.size() == 64) {
    const Digest digest = Digest::parse(prefix);
    const UniqueFd file = root.open_file(manifest_name(digest), RegistryRoot::Missing::Expected);
    return file ? std::optional(digest) : std::nullopt;
  }
  std::vector<Digest> found;
  for (const std::string& file : root.list(std::string(kManifests) + "/" + prefix.substr(0, 2))) {
    const auto digest = digest_of_manifest_file(file);
    if (!digest || !digest->hex().starts_with(prefix)) continue;
    if (ref.name && read_manifest(root, *digest).name != *ref.name) continue;
    found.push_back(*digest);
  }
  return only_layer(ref, found);
}

std::vector<CatalogTag> list_tags(const RegistryRoot& root) {
  std::vector<CatalogTag> tags;
  for (const LayerKind kind : {LayerKind::Base, LayerKind::Snapshot, LayerKind::Toolkit, LayerKind::Workspace}) {
    const std::string top = std::string(kTags) + "/" + std::string(to_string(kind));
    for (const std::string& folder : root.list(top))
      if (const auto name = name_of_folder(kind, folder))
        for (const std::string& tag : root.list(top + "/" + folder))
          if (valid_tag(tag)) tags.push_back({*name, tag});
  }
  std::sort(tags.begin(), tags.end(), [](const auto& a, const auto& b) { return a.str() < b.str(); });
  return tags;
}

}  // namespace dsec::registry
