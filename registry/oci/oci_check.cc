#include "registry/oci/oci_check.h"

#include <fcntl.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/layout/layout.h"
#include "registry/named_blob_check.h"
#include "registry/oci/indexed_blobs.h"
#include "registry/oci/oci_registry.h"
#include "registry/oci/oci_remover.h"
#include "registry/registry.h"

namespace dsec::registry {
namespace {

using Kind = RegistryProblem::Kind;

class OciCheck {
 public:
  OciCheck(Registry& registry, const CheckOptions& options, Progress& progress)
      : registry_(registry), options_(options), progress_(progress) {}

  CheckResult run() {
    // Tags before layers: a publisher sets a tag when the layer is there.
    std::vector<std::pair<CatalogTag, Digest>> tags;
    try {
      for (const CatalogTag& tag : registry_.tags({}))
        if (const auto layer = layer_of(tag)) tags.emplace_back(tag, *layer);
    } catch (const NoCatalogue& error) {
      // All layers lie in one repository, which is there to be listed.
      result_.left_out = "tags: " + error.message();
    }
    const std::vector<Digest> layers = registry_.layers();
    for (const auto& [tag, layer] : tags)
      if (!std::binary_search(layers.begin(), layers.end(), layer))
        problem(Kind::DanglingTag, tag_name(tag.name, tag.tag),
                "names " + layer.str() + ", which the registry has not");
    for (const Digest& layer : layers) check_layer(layer);
    for (const auto& [digest, blob] : blobs_) check_blob(blob);
    return std::move(result_);
  }

 private:
  void problem(Kind kind, const std::string& path, std::string what) {
    result_.problems.push_back({kind, path, std::move(what)});
  }

  std::optional<Digest> layer_of(const CatalogTag& tag) {
    try {
      const auto layer = registry_.tag(tag.name, tag.tag);
      if (layer) ++result_.tags;
      return layer;
    } catch (const Error& error) {
      // An image that lies among layers is nothing of ours.
      if (error.kind() != ErrorKind::Usage) throw;
      return std::nullopt;
    }
  }

  void check_layer(const Digest& layer) {
    ++result_.layers;
    if (!registry_.blob_size(layer)) {
      // Removed since it was listed, or half of it.
      if (registry_.resolve(LayerRef::of(layer)))
        problem(Kind::DamagedManifest, manifest_name(layer), "is named by its tag, and is not there");
      return;
    }
    try {
      for (const LayerImage& image : registry_.manifest(layer).images)
        for (const Blob& blob : image.blobs) blobs_.emplace(blob.digest, blob);
    } catch (const Error& error) {
      problem(Kind::DamagedManifest, manifest_name(layer), error.message());
    }
  }

  void check_blob(const Blob& blob) {
    ReadWhole read;
    if (options_.content)
      read = [&](const std::function<void(std::uint64_t)>& advance) {
        const UniqueFd nowhere = dsec::open_file("/dev/null", O_WRONLY);
        return registry_.copy_blob(blob, nowhere.get(), advance);
      };
    try {
      check_named_blob(blob, registry_.blob_size(blob.digest), read, result_, progress_);
    } catch (const BadIndex& error) {
      problem(Kind::Altered, blob_name(blob.digest), error.message());
    }
  }

  Registry& registry_;
  const CheckOptions& options_;
  Progress& progress_;
  std::map<Digest, Blob> blobs_;
  CheckResult result_;
};

}  // namespace

CheckResult check_oci(const RegistryAddress& address, const CheckOptions& options, Progress& progress) {
  if (options.repair)
    throw usage_error("what is in " + address.url() + " cannot be repaired from here")
        .hint("remove what is damaged by the registry's own means, then publish again");
  const auto registry = open_oci_registry(address, progress);
  return OciCheck(*registry, options, progress).run();
}

}  // namespace dsec::registry
