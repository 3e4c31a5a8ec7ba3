#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/engine/branching.h"
#include "core/engine/layer_store.h"

namespace dsec::engine {

/// What a sandbox has written, and what it stands on, for as long as they are read.
struct WrittenTree {
  int upper;                        ///< directory: the writable layer in overlayfs form, with owners as seen inside
  int lower;                        ///< directory: all layers in one; -1: see written_tree.h
  std::vector<StoredLayer> layers;  ///< what `lower` is composed of, bottom to top
  /// To be called once `upper` was read for the last time: the sandbox may go on. May be empty.
  std::function<void()> release;
};

struct PackRequest {
  LayerName name;
  std::string tag;  ///< empty: none
  bool scrub = false;
  std::vector<std::string> leave_out;  ///< more to scrub, as in gitignore(5)
  std::map<std::string, std::string> labels;
};

struct PackedLayer {
  StoredLayer layer;
  std::vector<StoredLayer> stack;  ///< what shows the same tree, bottom to top; the last is `layer`
  std::size_t collapsed = 0;       ///< snapshots of the stack that became part of it
  std::vector<std::string> warnings;
  std::shared_ptr<BlobSession> hold;  ///< keeps gc away until a lease, a tag or the like does
};

/// What layers/ makes of the writable layer of a sandbox; here because sandboxes know nothing of images. Thread-safe.
class LayerPacker {
 public:
  virtual ~LayerPacker() = default;

  /// A snapshot on the same layers, or with them where the chain of snapshots gets too long.
  virtual PackedLayer pack_snapshot(const WrittenTree& tree, const PackRequest& request) = 0;
  /// A workspace on the base that also holds what the workspace and the snapshots of the stack hold.
  virtual PackedLayer pack_workspace(const WrittenTree& tree, const PackRequest& request) = 0;

  virtual std::vector<FileChange> compare(const WrittenTree& tree) = 0;
  virtual void write(const WrittenTree& tree, DiffForm form, int fd) = 0;
};

}  // namespace dsec::engine
