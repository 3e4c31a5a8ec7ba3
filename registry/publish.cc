#include "registry/publish.h"

#include <memory>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "registry/publication.h"
#include "registry/registry.h"
#include "registry/store/chunk_digests.h"
#include "registry/store/working_set.h"

namespace dsec::registry {
namespace {

// What came with the layer when it was pulled on demand.
std::optional<PrefetchList> kept_list(const LocalStore& store, const engine::StoredLayer& layer) {
  PrefetchList list{layer.digest, {}};
  for (const LayerImage& image : layer.manifest.images) {
    const Blob *const data = image.find(BlobRole::Data), *const chunks = image.find(BlobRole::Chunks);
    if (!data || !chunks) continue;
    std::vector<ChunkRun> runs = store.prefetch_list(data->digest, chunks->digest, chunks_of(data->size, kChunkSize));
    if (!runs.empty()) list.blobs.push_back({data->digest, std::move(runs)});
  }
  if (list.blobs.empty()) return std::nullopt;
  return list;
}

}  // namespace

PublishResult publish(LocalStore& store, std::span<const LayerRef> refs, const RegistryAddress& address,
                      const PublishOptions& options, Progress& progress) {
  for (const LayerRef& ref : refs) store.get(ref);  // before a registry is made for a name that is wrong
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Write, progress);
  const auto session = store.begin_session();
  std::vector<WantedLayer> layers;
  std::set<Digest> wanted;
  const auto add = [&](const LayerRef& ref, const engine::StoredLayer& layer) {
    for (const auto& [digest, blob] : blobs_of(layer.manifest)) session->hold(digest);
    wanted.insert(layer.digest);
    layers.push_back({ref.str(), layer.digest, layer.manifest});
    if (ref.tag) layers.back().tags.push_back({*ref.name, *ref.tag});
    // One that is there already may be newer.
    if (const auto list = kept_list(store, layer); list && !registry->prefetch_list(layer.digest))
      layers.back().prefetch_list = list->text();
  };
  for (const LayerRef& ref : refs) {
    const engine::StoredLayer layer = store.get(ref);
    // What a snapshot stands on first, so that nobody finds it without; under no tag.
    for (const Digest& lower : layer.manifest.lowers)
      if (!wanted.contains(lower)) add(LayerRef::of(lower), store.get(LayerRef::of(lower)));
    add(ref, layer);
  }
  const auto contents = contents_of(store);
  PublishResult result = Publication(*registry, *contents, options, progress).run(layers, store.home().host_id());
  for (const WantedLayer& layer : layers) note_source(store, layer.digest, {address.url(), address.allow_any_fs});
  return result;
}

void require_publishable(LocalStore& store, const RegistryAddress& address, Progress& progress) {
  const auto contents = contents_of(store);
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
  (void)registry->publisher(*contents, store.home().host_id(), {});
}

bool publish_prefetch_list(LocalStore& store, const PrefetchList& list, const RegistryAddress& address,
                           Progress& progress) {
  const LayerRef layer = LayerRef::of(list.layer);
  return attempt("cannot publish the prefetch list of " + list.layer.brief() + " to " + address.shown(), [&] {
    const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
    if (!registry->resolve(layer)) return false;
    const auto contents = contents_of(store);
    const auto publisher = registry->publisher(*contents, store.home().host_id(), {list.layer});
    publisher->begin(progress);
    publisher->put_prefetch_list(store.get(layer).manifest, list.text());
    return true;
  });
}

}  // namespace dsec::registry
