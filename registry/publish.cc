#include "registry/publish.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/registry.h"

namespace dsec::registry {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
}

std::string rate(std::uint64_t bytes, std::chrono::milliseconds duration) {
  const auto ms = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 1));
  return format_size(bytes) + " in " + format_duration(duration) + ", " + format_size(bytes * 1000 / ms) + "/s";
}

std::map<Digest, Blob> blobs_of(const LayerManifest& manifest) {
  std::map<Digest, Blob> blobs;
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs) blobs.emplace(blob.digest, blob);
  return blobs;
}

class Publication {
 public:
  Publication(LocalStore& store, Registry& registry, const PublishOptions& options, Progress& progress)
      : store_(store), registry_(registry), options_(options), progress_(progress), session_(store.begin_session()) {}

  /// Holds all layers in the store and announces their blobs in the registry, before anything is looked at.
  void prepare(std::span<const LayerRef> refs) {
    std::set<Digest> blobs;
    const auto add = [&](const LayerRef& ref, const engine::StoredLayer& layer) {
      for (const auto& [digest, blob] : blobs_of(layer.manifest)) {
        session_->hold(digest);
        blobs.insert(digest);
      }
      layers_.push_back({ref, layer});
    };
    const auto announced = [&](const Digest& digest) {
      return std::any_of(layers_.begin(), layers_.end(),
                         [&](const Wanted& wanted) { return wanted.layer.digest == digest; });
    };
    for (const LayerRef& ref : refs) {
      const engine::StoredLayer layer = store_.get(ref);
      // What a snapshot stands on first, so that nobody finds it without; under no tag.
      for (const Digest& lower : layer.manifest.lowers)
        if (!announced(lower)) add(LayerRef::of(lower), store_.get(LayerRef::of(lower)));
      add(ref, layer);
    }
    publisher_ = registry_.publisher(store_, std::move(blobs));
  }

  PublishResult run() {
    const auto start = Clock::now();
    for (const Wanted& wanted : layers_)
      attempt("cannot publish " + wanted.ref.str() + " to " + registry_.address().shown(),
              [&] { publish_layer(wanted.ref, wanted.layer); });
    attempt("cannot write the catalogue of " + registry_.address().shown(), [&] { publisher_->finish(); });
    result_.duration = since(start);
    return std::move(result_);
  }

 private:
  void publish_layer(const LayerRef& ref, const engine::StoredLayer& layer) {
    const std::string step = "publish " + ref.str();
    const auto start = Clock::now();
    PublishedLayer published{ref.str(), layer.digest, layer.manifest.total_size(), 0};
    progress_.begin(step);
    std::uint64_t done = 0;
    const auto blobs = blobs_of(layer.manifest);
    for (const auto& [digest, blob] : blobs) {
      const bool copied =
          put_blob(blob, [&](std::uint64_t part) { progress_.advance(step, done + part, published.bytes); });
      (copied ? published.bytes_copied : result_.bytes_present) += blob.size;
      done += blob.size;
      progress_.advance(step, done, published.bytes);
    }
    // Somebody's repair may have removed a blob between our looking and its seeing our lease.
    for (const auto& [digest, blob] : blobs)
      if (!publisher_->has_blob(blob)) put_blob(blob, [](std::uint64_t) {});
    attempt("cannot write the manifest", [&] { publisher_->put_manifest(layer.manifest); });
    if (ref.tag) attempt("cannot write the tag", [&] { publisher_->put_tag(*ref.name, *ref.tag, layer.manifest); });
    result_.bytes_copied += published.bytes_copied;
    progress_.end(step, published.bytes_copied ? rate(published.bytes_copied, since(start)) : "was there already");
    result_.layers.push_back(std::move(published));
  }

  // False when nothing had to be copied.
  bool put_blob(const Blob& blob, const std::function<void(std::uint64_t)>& advance) {
    if (publisher_->has_blob(blob)) {
      if (options_.verify_existing) publisher_->verify_blob(blob);
      return false;
    }
    return attempt("cannot copy blob " + blob.digest.brief(), [&] { return publisher_->put_blob(blob, advance); });
  }

  LocalStore& store_;
  Registry& registry_;
  const PublishOptions& options_;
  Progress& progress_;
  std::unique_ptr<engine::BlobSession> session_;
  std::unique_ptr<Publisher> publisher_;
  struct Wanted {
    LayerRef ref;
    engine::StoredLayer layer;
  };
  std::vector<Wanted> layers_;
  PublishResult result_;
};

}  // namespace

PublishResult publish(LocalStore& store, std::span<const LayerRef> refs, const RegistryAddress& address,
                      const PublishOptions& options, Progress& progress) {
  for (const LayerRef& ref : refs) store.get(ref);  // before a registry is made for a name that is wrong
  const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Write, progress);
  Publication publication(store, *registry, options, progress);
  publication.prepare(refs);
  return publication.run();
}

}  // namespace dsec::registry
