#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/model/layer_manifest.h"

namespace dsec::engine {

/// A layer that the store holds.
struct StoredLayer {
  Digest digest;  ///< of the manifest
  LayerManifest manifest;
  std::vector<std::string> tags;  ///< whole: "base/debian:12", sorted
  std::map<std::string, std::string> labels;
  std::chrono::system_clock::time_point added;
  /// Built by this dsec or fully checked already; else it is checked before the kernel mounts it.
  bool trusted = false;
  /// Some data blobs are read where they lie in a registry added with --in-place: nothing verifies them.
  bool in_place = false;
};

/// Blobs on their way into the store: as long as the object lives (and its process), gc leaves what it wrote alone. Not
/// thread-safe; may not outlive its store.
class BlobSession {
 public:
  virtual ~BlobSession() = default;
  /// A file on the store's filesystem to write a blob into.
  virtual TempFile new_file() = 0;
  /// Takes the file into the store under its digest (computed, unless the caller hashed while writing); the same blob
  /// twice is kept once. The descriptor's content must be complete.
  virtual Blob adopt(TempFile file, BlobRole role, std::optional<Digest> known = std::nullopt) = 0;
  /// A blob that is already there is protected like a new one; false when it is not there.
  virtual bool hold(const Digest& digest) = 0;
};

/// What `trust` says of a layer that is added.
enum class Trust { BuiltHere, Foreign };

/// This host's blobs and index. Safe for any number of processes and threads.
class LayerStore {
 public:
  virtual ~LayerStore() = default;

  virtual std::unique_ptr<BlobSession> begin_session() = 0;
  /// Records a layer whose blobs are all held by `session`, and tags it under its own name (an empty tag: none: then gc
  /// takes it once the session is gone, unless a lease, lock or layer built on it names it). Returns what is stored.
  virtual StoredLayer add(const LayerManifest& manifest, const std::string& tag, Trust trust, BlobSession& session,
                          const std::map<std::string, std::string>& labels = {}) = 0;

  /// Empty when there is none; throws Error (Usage) for a digest prefix that several have.
  virtual std::optional<StoredLayer> find(const LayerRef& ref) = 0;
  /// Throws Error (Usage) that suggests the nearest names.
  virtual StoredLayer get(const LayerRef& ref) = 0;
  virtual std::vector<StoredLayer> list() = 0;
  /// Throws Error when one of `layers` is not stored. To be called after a lease that names them was written: gc cannot
  /// remove what this has found until the lease is gone.
  virtual void confirm(std::span<const Digest> layers) = 0;

  /// Moves the tag when there is one. The kind must be the layer's.
  virtual void tag(const Digest& layer, const LayerName& name, const std::string& tag) = 0;
  /// False when there was no such tag.
  virtual bool untag(const LayerName& name, const std::string& tag) = 0;
  virtual void mark_trusted(const Digest& layer) = 0;

  /// These layers are kept while `file` exists (a dsec.lock, an entry of the build cache). Replaces what was registered
  /// for it.
  virtual void register_lock(const std::filesystem::path& file, std::span<const Digest> layers) = 0;

  /// Where a blob lies: in the store, or in an in-place registry. Throws Error when it is nowhere.
  virtual std::filesystem::path blob_path(const Digest& blob) = 0;
  virtual bool has_blob(const Digest& blob) = 0;
};

}  // namespace dsec::engine
