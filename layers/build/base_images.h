#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/engine/layer_store.h"
#include "core/engine/remote_image.h"
#include "layers/build/step_cache.h"
#include "layers/dockerfile/plan.h"

namespace dsec::layers {

/// The name of an image as Dockerfiles have it, in its parts. `python:3.11` is docker.io's library/python.
struct ImageName {
  std::string host, repository, tag;
  std::optional<Digest> digest;  ///< where it is given, the tag does not count

  /// Throws Error (Usage).
  static ImageName parse(const std::string& text);
  /// "docker.io/library/python:3.11", "ghcr.io/a/b@sha256:…".
  std::string str() const;
  /// What it is called here: `base/python:3.11`, `base/ghcr.io/a/b:1`, a port's ':' being "__". Throws Error (Usage).
  LayerRef layer() const;
};

/// The layer that a name of FROM, COPY --from or RUN --mount=from= means here when it is none of an image:
/// `base/debian:12`.
std::optional<LayerRef> named_layer_ref(const std::string& name);

/// The label of a layer in the store that was fetched for a Dockerfile: "docker.io/library/python:3.11@sha256:…".
inline constexpr const char* kImageLabel = "dsec.image";

/// Which layers the names of images in a Dockerfile mean. What is not here is fetched from its registry and stays as a
/// base layer under the image's name, so that every later build has it, with or without a network.
class BaseImages {
 public:
  struct Setting {
    engine::LayerStore& store;
    StepCache& cache;                           ///< remembers images by digest
    std::filesystem::path spool;                ///< also of locks, in a folder beside it
    engine::OpenRemoteImage images;             ///< empty: nothing is fetched
    std::string origin, platform;               ///< the Dockerfile, for messages; this host's platform
    bool offline = false, pull = false;         ///< fetch nothing; ask registries for newer images of tags
    std::map<std::string, std::string> locked;  ///< digests of images, by what input_name() calls them
    /// A layer of the project, the store, or a registry of layers.
    std::function<std::optional<engine::StoredLayer>(const LayerRef&)> layer;
    Progress& progress;
  };
  explicit BaseImages(Setting setting) : set_(std::move(setting)) {}

  /// Throws Error naming file, line and instruction. The answer stays the same as long as this object lives.
  const engine::StoredLayer& get(const dockerfile::NamedImage& image);

  /// Throws Error naming all of these that cannot be had.
  void require(const std::vector<dockerfile::NamedImage>& images);

  /// Digests of the images of registries that were asked for, as provenance and lock record them.
  const std::map<std::string, std::string>& inputs() const noexcept { return inputs_; }
  /// Whether an input of a Dockerfile is such an image, and none of its files.
  static bool is_image_input(const std::string& name) { return name.starts_with("image "); }

 private:
  engine::StoredLayer find(const dockerfile::NamedImage& image);
  engine::StoredLayer find_image(const ImageName& name, const dockerfile::NamedImage& image);
  std::optional<engine::StoredLayer> by_digest(const ImageName& name, const Digest& digest,
                                               const std::string& platform);
  std::optional<engine::StoredLayer> newer(const ImageName& name, const engine::StoredLayer& here,
                                           const std::string& platform);
  engine::StoredLayer fetch(const ImageName& name, const std::optional<Digest>& digest, const std::string& platform);
  engine::StoredLayer fetch_locked(const ImageName& name, const Digest& digest, const std::string& platform);
  void check(const engine::StoredLayer& layer, const std::string& name, const std::string& platform) const;
  void note(const ImageName& name, const std::string& platform, const engine::StoredLayer& layer);
  std::string input_name(const ImageName& name, const std::string& platform) const;
  Digest key_of(const Digest& image, const std::string& platform) const;

  Setting set_;
  std::map<std::string, engine::StoredLayer> known_;
  std::map<std::string, std::string> inputs_;
};

}  // namespace dsec::layers
