#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/engine/layer_store.h"

namespace dsec::engine {

/// Of contents that are loaded while they are read: how much of them has come, at any time.
struct LoadCount {
  std::uint64_t bytes = 0;            ///< of these contents
  UniqueFd file;                      ///< to read it from; no descriptor: all contents were here
  std::vector<std::uint64_t> places;  ///< in the file, of 64-bit numbers: bytes of each blob that registries gave
};

/// The files of one EROFS image.
struct ImageFiles {
  std::filesystem::path meta;
  std::optional<std::filesystem::path> data;  ///< absent: all is in `meta`
};

/// The disk that a machine starts from; nothing writes to it.
struct BootDisk {
  std::filesystem::path file;
  DiskForm form;
};

/// The read-only trees that a sandbox's overlay is stacked from.
struct LayerStack {
  /// Detached mounts (open_tree with OPEN_TREE_CLONE), bottom to top, each the root of one EROFS image; the last may be
  /// the fix-up of directory attributes. They belong to the caller, who may id-map and attach them once.
  std::vector<UniqueFd> lowers;
  LoadCount loading;
  std::vector<ImageFiles> images;     ///< of LayerMounter::files(), in the order of `lowers`, which are none then
  std::optional<BootDisk> disk = {};  ///< of LayerMounter::disk(), instead of all others
};

/// A file of one layer that another layer of the stack hides, or that cannot be stacked.
struct StackConflict {
  std::string path;          ///< bytes, relative
  std::string lower, upper;  ///< names of the two layers
  std::string what;          ///< "a directory over a symlink"
};

/// Makes layers visible: one EROFS mount per host and meta digest, shared by all sandboxes, in a mount namespace pinned
/// at run/mntns. A mount lives until gc finds no lease that names its layer.
class LayerMounter {
 public:
  virtual ~LayerMounter() = default;

  /// Mounts what is not mounted yet, and returns clones. The caller has written a lease that names the layers. Throws
  /// Error naming both layers when they cannot be stacked, unless `accept_conflicts`.
  virtual LayerStack open(std::span<const StoredLayer> bottom_to_top, bool accept_conflicts) = 0;

  /// The same for a kernel that is not this one: nothing is mounted. Throws Error, too, for contents that are not here.
  virtual LayerStack files(std::span<const StoredLayer> bottom_to_top, bool accept_conflicts) = 0;

  /// The one layer as the disk of a machine. Throws Error (Usage) when it is none, or has others upon it.
  virtual BootDisk disk(std::span<const StoredLayer> bottom_to_top) = 0;

  /// Conflicts of a stack without mounting anything (no root needed).
  virtual std::vector<StackConflict> conflicts(std::span<const StoredLayer> bottom_to_top) = 0;

  /// The composed read-only tree at `target`, in the caller's mount namespace, until unmount_at.
  virtual void mount_at(std::span<const StoredLayer> bottom_to_top, const std::filesystem::path& target) = 0;
  virtual void unmount_at(const std::filesystem::path& target) = 0;

  /// Unmounts every image whose meta digest is not in `needed`; returns how many.
  virtual std::size_t unmount_unused(std::span<const Digest> needed) = 0;
};

}  // namespace dsec::engine
