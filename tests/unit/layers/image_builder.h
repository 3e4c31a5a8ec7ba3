#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/files.h"

/// An OCI image layout in a directory; every claim in it can be a lie.
class ImageBuilder {
 public:
  struct Layer {
    std::string blob;      ///< the bytes as stored
    std::string unpacked;  ///< what the diff_id is of; empty: the blob itself
  };

  explicit ImageBuilder(std::filesystem::path root) : root_(std::move(root)) {
    dsec::make_directories(root_ / "blobs/sha256");
    dsec::write_file_atomic(root_ / "oci-layout", R"({"imageLayoutVersion":"1.0.0"})");
  }

  dsec::Json descriptor(const std::string& bytes) {
    const dsec::Digest digest = dsec::Digest::of(bytes);
    dsec::write_file_atomic(blob_path(digest), bytes);
    return {{"digest", digest.str()}, {"size", bytes.size()}};
  }
  std::filesystem::path blob_path(const dsec::Digest& digest) const { return root_ / "blobs/sha256" / digest.hex(); }

  dsec::Json config(const std::vector<Layer>& layers, const std::string& architecture = "amd64") {
    dsec::Json config = {{"os", "linux"},
                         {"architecture", architecture},
                         {"config",
                          {{"Env", {"A=1"}},
                           {"Cmd", {"sh"}},
                           {"Entrypoint", nullptr},
                           {"ExposedPorts", {{"80/tcp", dsec::Json::object()}}}}},
                         {"rootfs", {{"type", "layers"}, {"diff_ids", dsec::Json::array()}}}};
    for (const Layer& layer : layers)
      config["rootfs"]["diff_ids"].push_back(
          dsec::Digest::of(layer.unpacked.empty() ? layer.blob : layer.unpacked).str());
    return config;
  }
  dsec::Json manifest(const std::vector<Layer>& layers, const dsec::Json& config) {
    dsec::Json manifest = {
        {"schemaVersion", 2}, {"config", descriptor(config.dump())}, {"layers", dsec::Json::array()}};
    for (const Layer& layer : layers) manifest["layers"].push_back(descriptor(layer.blob));
    return descriptor(manifest.dump());
  }
  dsec::Json image(const std::vector<Layer>& layers) { return manifest(layers, config(layers)); }
  dsec::Json named(dsec::Json descriptor, const std::string& name) {
    descriptor["annotations"]["org.opencontainers.image.ref.name"] = name;
    return descriptor;
  }
  void index(const std::vector<dsec::Json>& manifests) {
    dsec::write_file_atomic(root_ / "index.json", dsec::Json{{"schemaVersion", 2}, {"manifests", manifests}}.dump());
  }
  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path root_;
};
