#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/progress.h"
#include "core/model/layer_manifest.h"
#include "registry/blob_contents.h"
#include "registry/collect/remover.h"
#include "registry/registry_url.h"
#include "registry/store/local_store.h"

namespace dsec::registry {

/// A tag of a registry.
struct CatalogTag {
  LayerName name;
  std::string tag;
  std::string str() const { return name.str() + ":" + tag; }
};

/// One publisher at work: the blobs and layers that it was made with are held in the registry until it is done, as far
/// as the registry can.
/// What is there already is left as it is. Throws Error.
class Publisher {
 public:
  virtual ~Publisher() = default;

  /// Called before anything is looked at: returns once nobody removes what was announced.
  virtual void begin(Progress& progress) { (void)progress; }
  /// Whether the registry has the blob, by name and size.
  virtual bool has_blob(const Blob& blob) = 0;
  /// Reads a blob that it has. Throws Error when its bytes are others.
  virtual void verify_blob(const Blob& blob) = 0;
  /// Copies a blob; false when nothing had to be copied after all. `advance` is told the bytes done.
  virtual bool put_blob(const Blob& blob, const std::function<void(std::uint64_t)>& advance) = 0;
  /// Makes a layer known, all of whose blobs are there.
  virtual void put_manifest(const LayerManifest& manifest) = 0;
  /// Lets a tag name a layer that is known.
  virtual void put_tag(const LayerName& name, const std::string& tag, const LayerManifest& manifest) = 0;
  /// Replaces what is kept beside a layer that is known: a PrefetchList of it, as text.
  virtual void put_prefetch_list(const LayerManifest& manifest, const std::string& text) = 0;
  /// Called once all layers are known: brings up to date what tells of the registry as a whole.
  virtual void finish() {}
};

/// A place that layers are published to and pulled from; each kind of URL has one behind this port. What it answers is
/// not believed: a manifest has its digest, and who copies a blob compares its digest. Throws Error, and "not there" is
/// an empty answer where it may be expected. One thread.
class Registry {
 public:
  virtual ~Registry() = default;
  virtual const RegistryAddress& address() const = 0;

  /// What a reference names: a tag's target, or the layer of a digest or unique prefix. Throws Error (Usage) for a
  /// prefix of several layers.
  virtual std::optional<Digest> resolve(const LayerRef& ref) = 0;
  virtual LayerManifest manifest(const Digest& layer) = 0;
  /// What Publisher::put_prefetch_list() put, as it is there; empty when there is none.
  virtual std::optional<std::string> prefetch_list(const Digest& layer) = 0;
  /// Throws Error when the tag holds something else than a layer.
  virtual std::optional<Digest> tag(const LayerName& name, const std::string& tag) = 0;
  /// All tags, or those of one name; sorted.
  virtual std::vector<CatalogTag> tags(const std::optional<LayerName>& name) = 0;
  /// All layers, also those without a tag; sorted.
  virtual std::vector<Digest> layers() = 0;

  /// How large the registry's blob is; empty when there is none.
  virtual std::optional<std::uint64_t> blob_size(const Digest& blob) = 0;
  /// Writes a blob to `to`, from its start, and returns the digest of what came. `advance` is told the bytes done.
  virtual Digest copy_blob(const Blob& blob, int to, const std::function<void(std::uint64_t)>& advance) = 0;
  /// Fills `bytes` with what the blob has at `offset`, all of which lies within it; unverified. May be called by any
  /// number of threads at once, beside nothing else.
  virtual void read_range(const Blob& blob, std::uint64_t offset, std::span<std::byte> bytes) = 0;
  /// What read_range() gave was wrong: what is kept open and what has other ways is to be read anew. Any thread.
  virtual void distrust() {}
  /// Where the kernel may read a blob in place; empty when it has to be copied.
  virtual std::optional<std::filesystem::path> in_place(const Blob& blob) = 0;

  /// A file of this host that has the blob, opened for reading; none where that takes copying it.
  virtual UniqueFd open_file(const Blob& blob) { return (void)blob, UniqueFd(); }

  /// `contents`, which has the blobs, must outlive it. `announced`: all blobs and layers that it is going to refer to.
  virtual std::unique_ptr<Publisher> publisher(BlobContents& contents, const std::string& host_id,
                                               std::set<Digest> announced) = 0;
  /// Throws Error (Usage) where nothing can be removed from here.
  virtual std::unique_ptr<Remover> remover() = 0;
};

/// What all tags of the registry name. Throws Error when one of them cannot be read.
std::set<Digest> tagged_layers(Registry& registry);

/// The one that a prefix of a digest found, or none. Throws Error (Usage) naming some when there are several.
std::optional<Digest> only_layer(const LayerRef& ref, const std::vector<Digest>& found);

enum class OpenMode { Read, Write };
/// Throws Error when there is no registry, or it is away; Write makes one where that takes no more than a directory.
/// `progress`, which outlives it, is told what has to be waited for.
std::unique_ptr<Registry> open_registry(const RegistryAddress& address, OpenMode mode, Progress& progress);

/// An error for a reference that resolve() did not find, with near names.
Error not_in_registry(Registry& registry, const LayerRef& ref);

}  // namespace dsec::registry
