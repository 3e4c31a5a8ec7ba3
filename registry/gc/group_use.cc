#include "registry/gc/group_use.h"

#include <map>
#include <set>

#include "registry/gc/working_layers.h"

namespace dsec::registry {
namespace {

/// Groups by name, in order, and which layers each has.
using Groups = std::vector<std::pair<std::string, std::set<Digest>>>;

std::vector<GroupUse> measure(LocalStore& store, const std::vector<engine::StoredLayer>& layers, const Groups& groups) {
  std::map<Digest, const engine::StoredLayer*> by_digest;
  for (const engine::StoredLayer& layer : layers) by_digest.emplace(layer.digest, &layer);
  std::vector<GroupUse> uses;
  std::vector<std::map<Digest, std::uint64_t>> blobs;  // of each group, those that are here
  std::map<Digest, int> groups_of;
  for (const auto& [name, members] : groups) {
    GroupUse use{.name = name};
    std::map<Digest, std::uint64_t> here;
    std::set<Digest> away;
    for (const Digest& layer : members) {
      const auto found = by_digest.find(layer);
      ++(found == by_digest.end() ? use.missing : use.layers);
      if (found == by_digest.end()) continue;
      for (const LayerImage& image : found->second->manifest.images)
        for (const Blob& blob : image.blobs)
          if (const auto bytes = stored_bytes(store, blob.digest))
            here.emplace(blob.digest, *bytes);
          else if (!store.has_blob(blob.digest) && away.insert(blob.digest).second)
            use.on_demand += blob.size;
    }
    for (const auto& [blob, bytes] : here) {
      use.bytes += bytes;
      ++groups_of[blob];
    }
    uses.push_back(std::move(use));
    blobs.push_back(std::move(here));
  }
  for (std::size_t i = 0; i < uses.size(); ++i)
    for (const auto& [blob, bytes] : blobs[i])
      if (groups_of.at(blob) == 1) uses[i].alone += bytes;
  return uses;
}

}  // namespace

std::vector<GroupUse> use_by_kind(LocalStore& store) {
  const std::vector<engine::StoredLayer> layers = store.list();
  std::map<LayerKind, std::set<Digest>> kinds;
  for (const engine::StoredLayer& layer : layers) kinds[layer.manifest.name.kind].insert(layer.digest);
  Groups groups;
  for (auto& [kind, members] : kinds) groups.emplace_back(to_string(kind), std::move(members));
  return measure(store, layers, groups);
}

std::vector<GroupUse> use_by_set(LocalStore& store) {
  const std::vector<engine::StoredLayer> layers = store.list();
  std::map<std::string, std::set<Digest>> sets;
  std::set<Digest> rest;
  for (const engine::StoredLayer& layer : layers) rest.insert(layer.digest);
  {
    // Entries of the build cache are registered as locks are, and no sets of tasks.
    const std::string build_cache = (store.home().cache() / "").native();
    const auto index = store.index().take();
    Statement locks = index->prepare("SELECT path, layer FROM lock_layers");
    while (locks.step()) {
      if (locks.text(0).starts_with(build_cache)) continue;
      const Digest layer = Digest::parse(locks.text(1));
      rest.erase(layer);
      sets[locks.text(0)].insert(layer);
    }
  }
  Groups groups(std::make_move_iterator(sets.begin()), std::make_move_iterator(sets.end()));
  groups.emplace_back("", std::move(rest));
  return measure(store, layers, groups);
}

}  // namespace dsec::registry
