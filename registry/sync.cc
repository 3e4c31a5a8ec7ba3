#include "registry/sync.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "core/base/error.h"
#include "registry/layout/prefetch_list.h"
#include "registry/publication.h"
#include "registry/registry.h"

namespace dsec::registry {
namespace {

/// Finds in a registry what is to be copied, in the order of copying.
class Selection {
 public:
  explicit Selection(Registry& from) : from_(from) {}

  void add(const LayerRef& ref) {
    const std::optional<Digest> layer = from_.resolve(ref);
    if (!layer) return missing_.push_back(not_in_registry(from_, ref));
    add_layer(*layer, ref.str());
    if (ref.tag) add_tag(*layer, {*ref.name, *ref.tag});
  }

  void add(const Lock& lock) {
    for (const auto& [name, locked] : lock.layers) {
      const LayerRef ref = LayerRef::parse(name);
      if (!add_locked(locked.digest, name)) continue;
      // The tag may mean a newer layer by now.
      if (ref.tag && from_.tag(*ref.name, *ref.tag) == locked.digest) add_tag(locked.digest, {*ref.name, *ref.tag});
    }
    for (const auto& [environment, layers] : lock.environments)
      for (const Digest& layer : layers) add_locked(layer, layer.brief() + " of environment " + environment);
  }

  void add_everything() {
    for (const CatalogTag& tag : from_.tags({}))
      if (const std::optional<Digest> layer = tag_if_layer(tag)) {
        add_layer(*layer, tag.str());
        add_tag(*layer, tag);
      }
    for (const Digest& layer : from_.layers()) add_layer(layer, layer.str());
  }

  /// Throws Error when something is missing: all of it.
  std::vector<WantedLayer> take() {
    if (missing_.empty()) return std::move(layers_);
    Error error = missing_.back();
    for (auto other = missing_.rbegin() + 1; other != missing_.rend(); ++other) error.context(other->message());
    throw error;
  }

 private:
  std::optional<Digest> tag_if_layer(const CatalogTag& tag) {
    try {
      return from_.tag(tag.name, tag.tag);
    } catch (const Error& error) {
      // An image that lies among layers of an OCI registry.
      if (from_.address().kind == RegistryAddress::Kind::Oci && error.kind() == ErrorKind::Usage) return std::nullopt;
      throw;
    }
  }

  bool add_locked(const Digest& layer, const std::string& what) {
    if (index_.contains(layer)) return true;
    if (from_.resolve(LayerRef::of(layer))) return add_layer(layer, what), true;
    if (refused_.insert(layer).second) missing_.push_back(not_in_registry(from_, LayerRef::of(layer)));
    return false;
  }

  // Empty when there is none that anybody could use.
  std::optional<std::string> usable_list(const Digest& layer, const LayerManifest& manifest) {
    std::optional<std::string> text = from_.prefetch_list(layer);
    if (!text) return text;
    try {
      PrefetchList::parse(*text, layer, manifest);
    } catch (const Error&) {
      return std::nullopt;
    }
    return text;
  }

  // What a snapshot stands on comes before it.
  void add_layer(const Digest& layer, const std::string& ref) {
    if (index_.contains(layer)) return;
    LayerManifest manifest = from_.manifest(layer);
    for (const Digest& lower : manifest.lowers) add_layer(lower, lower.str());
    index_.emplace(layer, layers_.size());
    layers_.push_back({ref, layer, std::move(manifest), {}, {}});
    layers_.back().prefetch_list = usable_list(layer, layers_.back().manifest);
  }

  void add_tag(const Digest& layer, const CatalogTag& tag) { layers_[index_.at(layer)].tags.push_back(tag); }

  Registry& from_;
  std::vector<WantedLayer> layers_;
  std::map<Digest, std::size_t> index_;
  std::set<Digest> refused_;
  std::vector<Error> missing_;
};

}  // namespace

PublishResult sync_registries(const RegistryAddress& from, const RegistryAddress& to, std::span<const LayerRef> refs,
                              std::span<const Lock> locks, const engine::Home& home, Progress& progress) {
  if (from.url() == to.url()) throw usage_error("--from and --to are the same registry, " + to.url());
  const std::unique_ptr<Registry> source = open_registry(from, OpenMode::Read, progress);
  Selection selection(*source);
  attempt("cannot sync registry " + from.shown(), [&] {
    for (const LayerRef& ref : refs) selection.add(ref);
    for (const Lock& lock : locks) selection.add(lock);
    if (refs.empty() && locks.empty()) selection.add_everything();
  });
  const std::vector<WantedLayer> layers = selection.take();
  const std::unique_ptr<Registry> target = open_registry(to, OpenMode::Write, progress);
  const auto contents = contents_of(*source, home.cache(), progress);
  return Publication(*target, *contents, {}, progress).run(layers, home.host_id());
}

}  // namespace dsec::registry
