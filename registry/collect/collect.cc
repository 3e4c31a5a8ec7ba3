// How gc of a registry and its publishers keep out of each other's way without a lock: each writes down what it is
// about to do before it looks at what the other has written. A publisher's lease names what it is going to refer to; it
// is written before looking whether that is there, and then it waits for those who are removing any of it. gc writes a
// lease that names what is going to go, and looks at publishers' leases and at tags only then. So of the two at least
// one sees the other. Where there are no leases (OCI), gc looks at the tags once more when it has removed a layer and
// puts back what has got one; a publisher looks for the layer once more when it has set the tag.
#include "registry/collect/collect.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "registry/collect/condemned.h"
#include "registry/collect/remover.h"
#include "registry/layout/layout.h"
#include "registry/layout/publisher_lease.h"
#include "registry/registry.h"

namespace dsec::registry {
namespace {

using Kind = CollectItem::Kind;
using std::chrono::system_clock;

constexpr std::array<std::string_view, 4> kKinds = {"layer", "blob", "lease", "index"};
std::uint64_t now_seconds() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count());
}

template <typename Action>
void for_each_blob(const LayerManifest& manifest, Action&& action) {
  for (const LayerImage& image : manifest.images)
    for (const Blob& blob : image.blobs) action(blob);
}

class RegistryCollection {
 public:
  RegistryCollection(Registry& registry, const std::string& host_id, const CollectOptions& options, Progress& progress)
      : registry_(registry),
        host_id_(host_id),
        options_(options),
        progress_(progress),
        remover_(registry.remover()),
        grace_(static_cast<std::uint64_t>(std::max<std::int64_t>(options.grace.count(), 0))) {}

  CollectResult run() {
    const std::string step = "look for what nothing names";
    progress_.begin(step);
    look();
    progress_.end(step, std::to_string(manifests_.size()) + " layers");
    if (!result_.warnings.empty()) return std::move(result_);
    const Condemned before = Condemned::read(remover_->notes());
    judge(before);
    for (const FoundLease& lease : dead_) remove_lease(lease);
    if (options_.dry_run) {
      tell_doomed();
    } else {
      write_notes(before);
      if (!doomed_layers_.empty() || !doomed_blobs_.empty()) remove_doomed();
    }
    tell_waiting();
    result_.layers = manifests_.size() - doomed_layers_.size();
    return std::move(result_);
  }

 private:
  // Leases first: a publisher whose lease is gone has set its tags.
  void look() {
    announced_.clear();
    dead_.clear();
    for (FoundLease& lease : find_leases(remover_->notes())) {
      if (!lease.live)
        dead_.push_back(std::move(lease));
      else if (!lease.unreadable.empty())
        refuse("nothing is removed while the registry has a lease that cannot be read: " + lease.unreadable);
      else if (!lease.removes)
        announced_.insert(lease.digests.begin(), lease.digests.end());
    }
    blobs_ = remover_->blobs();
    result_.frees_itself = remover_->frees_itself();
    std::map<Digest, LayerManifest> manifests;
    for (const Digest& layer : registry_.layers()) {
      const auto known = manifests_.find(layer);
      if (known != manifests_.end()) {
        manifests.insert(*known);
        continue;
      }
      try {
        manifests.emplace(layer, registry_.manifest(layer));
      } catch (const Error& error) {
        // Another gc may have removed it.
        if (!registry_.resolve(LayerRef::of(layer))) continue;
        refuse("nothing is removed while the registry has a manifest that cannot be read: " + error.message());
      }
    }
    manifests_ = std::move(manifests);
    try {
      tagged_ = remover_->tagged();
    } catch (const Error& error) {
      refuse("nothing is removed while the registry has a tag that cannot be read: " + error.message());
    }
  }

  void refuse(std::string why) { result_.warnings.push_back(std::move(why)); }

  std::set<Digest> reachable() const {
    std::set<Digest> found;
    std::vector<Digest> pending(tagged_.begin(), tagged_.end());
    pending.insert(pending.end(), options_.keep.begin(), options_.keep.end());
    pending.insert(pending.end(), announced_.begin(), announced_.end());
    while (!pending.empty()) {
      const Digest layer = std::move(pending.back());
      pending.pop_back();
      const auto manifest = manifests_.find(layer);
      if (manifest == manifests_.end() || !found.insert(layer).second) continue;
      const auto& lowers = manifest->second.lowers;
      pending.insert(pending.end(), lowers.begin(), lowers.end());
      if (const auto& built_on = manifest->second.provenance.built_on) pending.push_back(*built_on);
    }
    return found;
  }

  // What is condemned, and what of it has been so for long enough.
  void judge(Condemned before) {
    const std::uint64_t now = now_seconds();
    condemned_ = {};
    doomed_layers_.clear();
    doomed_blobs_.clear();
    const auto since = [&](const std::map<Digest, std::uint64_t>& times, const Digest& digest) {
      const auto found = times.find(digest);
      return found == times.end() ? now : std::min(found->second, now);
    };
    const std::set<Digest> kept = reachable();
    std::set<Digest> named;
    for (const auto& [layer, manifest] : manifests_) {
      const std::uint64_t time = since(before.layers, layer);
      if (!kept.contains(layer)) {
        condemned_.layers.emplace(layer, time);
        if (now - time >= grace_) {
          doomed_layers_.insert(layer);
          continue;
        }
      }
      for_each_blob(manifest, [&](const Blob& blob) { named.insert(blob.digest); });
    }
    std::set<Digest> named_by_doomed;
    for (const Digest& layer : doomed_layers_)
      for_each_blob(manifests_.at(layer), [&](const Blob& blob) { named_by_doomed.insert(blob.digest); });
    for (const Digest& blob : blobs_) {
      if (named.contains(blob) || announced_.contains(blob)) continue;
      if (named_by_doomed.contains(blob)) {
        doomed_blobs_.insert(blob);
        continue;
      }
      const std::uint64_t time = since(before.blobs, blob);
      condemned_.blobs.emplace(blob, time);
      if (now - time >= grace_) doomed_blobs_.insert(blob);
    }
  }

  void remove_doomed() {
    std::set<Digest> going = std::exchange(doomed_layers_, {});
    going.merge(doomed_blobs_);
    doomed_blobs_.clear();
    if (remover_->has_leases()) lease_.emplace(remover_->notes(), host_id_, going, PublisherLease::Work::Removes);
    if (registry_.address().kind == RegistryAddress::Kind::ThreeFs) std::this_thread::sleep_for(options_.settle);
    look();
    if (!result_.warnings.empty()) return;
    // Also the notes: what a publisher has pardoned since begins its grace anew.
    const Condemned before = Condemned::read(remover_->notes());
    judge(before);
    // What has come to be doomed since is not announced.
    const auto unannounced = [&](const Digest& digest) { return !going.contains(digest); };
    std::erase_if(doomed_layers_, unannounced);
    std::erase_if(doomed_blobs_, unannounced);
    keep_blobs_of_layers_that_stay();
    for (const Digest& layer : doomed_layers_) remove_layer(layer);
    if (!lease_) put_back_tagged();
    for (const Digest& blob : doomed_blobs_) remove_blob(blob);
    remover_->finish(author());
    write_notes(before);
    lease_.reset();
  }

  void keep_blobs_of_layers_that_stay() {
    for (const auto& [layer, manifest] : manifests_)
      if (!doomed_layers_.contains(layer))
        for_each_blob(manifest, [&](const Blob& blob) { doomed_blobs_.erase(blob.digest); });
  }

  // Who is stopped for long must not go on: others have seen the lease run out.
  void check_lease() {
    if (lease_ && !lease_->holds())
      throw failure("removing was held up for too long to go on").hint("run it again: it goes on where it was");
  }

  void remove_layer(const Digest& layer) {
    check_lease();
    const LayerManifest& manifest = manifests_.at(layer);
    attempt("cannot remove layer " + manifest.name.str() + " " + layer.brief(),
            [&] { remover_->remove_layer(manifest); });
    condemned_.layers.erase(layer);
    tell_layer(layer, result_.removed);
  }

  void put_back_tagged() {
    tagged_ = remover_->tagged();
    const std::set<Digest> kept = reachable();
    for (const Digest& layer : doomed_layers_) {
      if (!kept.contains(layer)) continue;
      remover_->put_back(manifests_.at(layer));
      for_each_blob(manifests_.at(layer), [&](const Blob& blob) { doomed_blobs_.erase(blob.digest); });
    }
  }

  void remove_blob(const Digest& blob) {
    check_lease();
    const CollectItem item = blob_item(blob);
    attempt("cannot remove " + std::string(to_string(item.kind)) + " " + blob.brief(),
            [&] { remover_->remove_blob(blob); });
    condemned_.blobs.erase(blob);
    result_.removed.push_back(item);
    result_.bytes += item.bytes;
  }

  CollectItem blob_item(const Digest& blob) {
    if (result_.frees_itself) return {Kind::Index, blob.str(), 0};
    return {Kind::Blob, blob.str(), registry_.blob_size(blob).value_or(0)};
  }

  void remove_lease(const FoundLease& lease) {
    const std::string name = lease_name(lease.publisher);
    if (!options_.dry_run) remover_->notes().remove(name);
    result_.removed.push_back({Kind::Lease, name, 0});
  }

  std::string author() const { return lease_ ? lease_->publisher() : host_id_ + "-gc"; }
  void write_notes(const Condemned& before) { condemned_.write(before, remover_->notes(), author()); }

  void tell_layer(const Digest& layer, std::vector<CollectItem>& to) {
    to.push_back({Kind::Layer, manifests_.at(layer).name.str() + " " + layer.brief(), 0});
  }

  void tell_doomed() {
    for (const Digest& layer : doomed_layers_) tell_layer(layer, result_.removed);
    for (const Digest& blob : doomed_blobs_) {
      result_.removed.push_back(blob_item(blob));
      result_.bytes += result_.removed.back().bytes;
    }
  }

  void tell_waiting() {
    std::optional<std::uint64_t> first;
    std::set<Digest> blobs;  // that are told already, or named by a layer that stays
    for (const auto& [layer, manifest] : manifests_)
      if (!condemned_.layers.contains(layer) && !doomed_layers_.contains(layer))
        for_each_blob(manifest, [&](const Blob& blob) { blobs.insert(blob.digest); });
    for (const auto& [layer, since] : condemned_.layers) {
      if (doomed_layers_.contains(layer)) continue;
      tell_layer(layer, result_.waiting);
      first = std::min(first.value_or(since), since);
      for_each_blob(manifests_.at(layer), [&](const Blob& blob) {
        if (blobs.insert(blob.digest).second) result_.waiting_bytes += blob.size;
      });
    }
    for (const auto& [blob, since] : condemned_.blobs) {
      if (doomed_blobs_.contains(blob)) continue;
      result_.waiting.push_back(blob_item(blob));
      result_.waiting_bytes += result_.waiting.back().bytes;
      first = std::min(first.value_or(since), since);
    }
    if (first) result_.next = system_clock::time_point(std::chrono::seconds(*first + grace_));
  }

  Registry& registry_;
  const std::string host_id_;
  const CollectOptions& options_;
  Progress& progress_;
  const std::unique_ptr<Remover> remover_;
  const std::uint64_t grace_;

  std::set<Digest> announced_, tagged_;
  std::vector<FoundLease> dead_;
  std::vector<Digest> blobs_;
  std::map<Digest, LayerManifest> manifests_;
  Condemned condemned_;
  std::set<Digest> doomed_layers_, doomed_blobs_;
  std::optional<KeptLease> lease_;
  CollectResult result_;
};

}  // namespace

std::string_view to_string(CollectItem::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

CollectResult collect_registry(const RegistryAddress& address, const std::string& host_id,
                               const CollectOptions& options, Progress& progress) {
  return attempt("cannot collect garbage in registry " + address.shown(), [&] {
    const std::unique_ptr<Registry> registry = open_registry(address, OpenMode::Read, progress);
    return RegistryCollection(*registry, host_id, options, progress).run();
  });
}

}  // namespace dsec::registry
