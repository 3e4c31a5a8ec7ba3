#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "registry/publish.h"
#include "registry/registry.h"

namespace dsec::registry {

/// A layer that is to be published, under any number of tags.
struct WantedLayer {
  std::string ref;  ///< for messages and results
  Digest digest;
  LayerManifest manifest;
  std::vector<CatalogTag> tags = {};
  std::optional<std::string> prefetch_list = {};  ///< published with it
};

/// Brings layers into a registry from wherever their blobs are: blobs, then the manifest, then the tags. What a
/// snapshot stands on has to come before it. What is there is not copied again.
class Publication {
 public:
  /// All must outlive it.
  Publication(Registry& to, BlobContents& contents, const PublishOptions& options, Progress& progress)
      : to_(to), contents_(contents), options_(options), progress_(progress) {}

  /// Throws Error; then each layer is there with its tags, or has none of them.
  PublishResult run(const std::vector<WantedLayer>& layers, const std::string& host_id);

 private:
  void publish_layer(const WantedLayer& wanted);
  bool put_blob(const Blob& blob, const std::function<void(std::uint64_t)>& advance);

  Registry& to_;
  BlobContents& contents_;
  const PublishOptions& options_;
  Progress& progress_;
  std::unique_ptr<Publisher> publisher_;
  PublishResult result_;
};

/// The blobs of a layer, each once.
std::map<Digest, Blob> blobs_of(const LayerManifest& manifest);
/// "12 MiB in 3s, 4 MiB/s".
std::string transfer_text(std::uint64_t bytes, std::chrono::milliseconds duration);

}  // namespace dsec::registry
