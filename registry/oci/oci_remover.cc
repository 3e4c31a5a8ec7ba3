#include "registry/oci/oci_remover.h"

#include <algorithm>

#include "registry/layout/layout.h"
#include "registry/oci/artifact.h"
#include "registry/oci/indexed_blobs.h"
#include "registry/oci/referrers.h"

namespace dsec::registry {
namespace {

constexpr std::string_view kSuffix = ".json";

std::string tag_of_note(std::string name) {
  name.resize(name.size() - kSuffix.size());
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

}  // namespace

void put_artifact(OciClient& client, const std::string& repository, const std::string& tag,
                  const LayerManifest& manifest, const std::set<Digest>& indexed) {
  const std::string artifact = artifact_manifest(manifest, indexed), config = manifest.canonical();
  if (client.manifest_digest(repository, tag) == Digest::of(artifact)) return;
  if (const Digest layer = Digest::of(config); !client.blob_size(repository, layer))
    client.push_blob(repository, layer, {config, -1, config.size()}, [](std::uint64_t) {});
  client.push_manifest(repository, tag, kImageManifestType, artifact);
}

void put_on_shelf(OciClient& client, const std::string& shelf, const LayerManifest& manifest) {
  put_artifact(client, shelf, shelf_tag(manifest.digest()), manifest, indexed_blobs(client, shelf, manifest));
}

std::vector<Digest> shelved_layers(OciClient& client, const std::string& shelf) {
  std::vector<Digest> layers;
  for (const std::string& tag : client.tags(shelf))
    if (const auto layer = layer_of_shelf_tag(tag)) layers.push_back(*layer);
  std::sort(layers.begin(), layers.end());
  return layers;
}

NoCatalogue::NoCatalogue(const std::string& host, const std::string& shelf)
    : Error(ErrorKind::Failed, "registry oci://" + host + "/" + shelf + " keeps no catalogue that it shows us") {
  hint("name the layers, where the command takes names; or ask who runs the registry for GET /v2/_catalog");
}

std::vector<LayerName> layer_names(OciClient& client, const std::string& shelf) {
  const auto repositories = client.repositories(shelf);
  if (!repositories) throw NoCatalogue(client.host(), shelf);
  std::vector<LayerName> names;
  for (const std::string& repository : *repositories) {
    try {
      names.push_back(LayerName::parse(repository.substr(shelf.size() + 1)));
    } catch (const Error&) {
      // Somebody's images.
    }
  }
  return names;
}

std::vector<std::string> OciNotes::names(std::string_view folder) const {
  if (folder == kLeases) return {};
  const std::string prefix = std::string(folder) + "-";
  std::vector<std::string> names;
  for (const std::string& tag : client_.tags(shelf_))
    if (tag.starts_with(prefix))
      names.push_back(std::string(folder) + "/" + tag.substr(prefix.size()) + std::string(kSuffix));
  return names;
}

std::optional<std::string> OciNotes::read(const std::string& name) const {
  const auto document = client_.manifest(shelf_, tag_of_note(name));
  if (!document) return std::nullopt;
  const auto content = note_of_artifact(document->bytes, "the note " + name);
  return content ? client_.blob(shelf_, *content) : std::nullopt;
}

void OciNotes::write(const std::string& name, const std::string& text, const std::string&) const {
  const Digest content = Digest::of(text);
  if (!client_.blob_size(shelf_, content))
    client_.push_blob(shelf_, content, {text, -1, text.size()}, [](std::uint64_t) {});
  client_.push_manifest(shelf_, tag_of_note(name), kImageManifestType, note_artifact(content, text.size()));
}

void OciNotes::remove(const std::string& name) const {
  const auto manifest = client_.manifest_digest(shelf_, tag_of_note(name));
  if (!manifest) return;
  try {
    client_.delete_manifest(shelf_, *manifest);
  } catch (const Error&) {
    // Who may push may not be allowed to delete.
    write(name, "{}\n", "");
  }
}

std::set<Digest> OciRemover::tagged() {
  std::set<Digest> layers;
  for (const LayerName& name : layer_names(client_, shelf_)) {
    const std::string repository = shelf_ + "/" + name.str();
    for (const std::string& tag : client_.tags(repository))
      if (const auto document = client_.manifest(repository, tag))
        if (const auto layer = layer_of_artifact(document->bytes, name.str() + ":" + tag)) layers.insert(*layer);
  }
  return layers;
}

std::vector<Digest> OciRemover::blobs() {
  std::vector<Digest> indexed;
  for (const std::string& tag : client_.tags(shelf_))
    if (const auto data = data_of_index_tag(tag)) indexed.push_back(*data);
  return indexed;
}

void OciRemover::remove_layer(const LayerManifest& layer) {
  if (const auto list = client_.manifest(shelf_, prefetch_tag(layer.digest()))) delete_referrer(client_, shelf_, *list);
  // The artifact, whether it names the data or an index does.
  if (const auto artifact = client_.manifest_digest(shelf_, shelf_tag(layer.digest())))
    client_.delete_manifest(shelf_, *artifact);
}

void OciRemover::remove_blob(const Digest& data) {
  const auto index = client_.manifest(shelf_, index_tag(data));
  if (!index) return;
  removed_indexes_.insert_or_assign(data, index->bytes);
  delete_referrer(client_, shelf_, *index);
}

void OciRemover::put_back(const LayerManifest& layer) { put_on_shelf(client_, shelf_, layer); }

// A publisher that found an index and was not seen yet has its layer there by now, or will not find the index.
void OciRemover::finish(const std::string&) {
  if (removed_indexes_.empty()) return;
  for (const Digest& layer : shelved_layers(client_, shelf_)) {
    const auto config = client_.blob(shelf_, layer);
    if (!config) continue;
    const LayerManifest manifest = LayerManifest::parse(*config, layer.str());
    for (const LayerImage& image : manifest.images) {
      const Blob* const data = image.find(BlobRole::Data);
      const auto index = data ? removed_indexes_.find(data->digest) : removed_indexes_.end();
      if (index == removed_indexes_.end() || client_.blob_size(shelf_, data->digest)) continue;
      push_referrer(client_, shelf_, index_tag(data->digest), index->second);
      put_on_shelf(client_, shelf_, manifest);
    }
  }
}

}  // namespace dsec::registry
