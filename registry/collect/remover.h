#pragma once

#include <set>
#include <vector>

#include "core/model/layer_manifest.h"
#include "registry/layout/notes.h"

namespace dsec::registry {

/// What gc takes out of a registry by. Throws Error.
class Remover {
 public:
  virtual ~Remover() = default;

  virtual const Notes& notes() const = 0;
  /// What tags name. Throws Error when one of them cannot be read.
  virtual std::set<Digest> tagged() = 0;
  /// All that lie there; where the registry itself frees what its manifests do not name, those that only an index leads
  /// to.
  virtual std::vector<Digest> blobs() = 0;
  virtual bool frees_itself() const { return false; }
  /// Whether publishers write leases, and wait for those of who removes.
  virtual bool has_leases() const { return true; }
  virtual void remove_layer(const LayerManifest& layer) = 0;
  /// Where the registry frees blobs itself: the index that leads to it.
  virtual void remove_blob(const Digest& blob) = 0;
  /// Where there are no leases: makes a layer known again that was removed a moment ago.
  virtual void put_back(const LayerManifest& layer) { (void)layer; }
  /// Called when all has gone: brings up to date what tells of the registry as a whole.
  virtual void finish(const std::string& author) { (void)author; }
};

}  // namespace dsec::registry
