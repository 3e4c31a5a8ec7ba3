#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/layer_store.h"

namespace dsec::testing {

/// A store for tests: blobs in one directory, the index in memory, for looking at.
class TestStore : public engine::LayerStore {
 public:
  explicit TestStore(std::filesystem::path directory) : directory_(std::move(directory)) {
    make_directories(directory_);
  }

  std::map<std::string, engine::StoredLayer> layers;  ///< by "kind/name:tag"
  std::map<std::filesystem::path, std::vector<Digest>> locks;
  std::vector<Digest> trusted;  ///< marked so

  /// A layer that is nothing but its manifest.
  Digest put(const std::string& ref, std::optional<Digest> built_on = std::nullopt, const std::string& content = "") {
    LayerManifest manifest{LayerName::parse(ref.substr(0, ref.find(':'))), "linux/amd64", {}, {}, {}, {}};
    manifest.provenance.built_on = built_on;
    manifest.provenance.inputs["content"] = content;
    const Digest digest = manifest.digest();
    layers.insert_or_assign(ref, engine::StoredLayer{digest, manifest, {ref}, {}, {}, true});
    return digest;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(directory_), std::filesystem::directory_iterator()));
  }

  std::unique_ptr<engine::BlobSession> begin_session() override { return std::make_unique<Session>(*this); }
  engine::StoredLayer add(const LayerManifest& manifest, const std::string& tag, engine::Trust trust,
                          engine::BlobSession&, const std::map<std::string, std::string>& labels) override {
    const std::string ref = manifest.name.str() + ":" + tag;
    return layers
        .insert_or_assign(
            ref, engine::StoredLayer{manifest.digest(), manifest, {ref}, labels, {}, trust == engine::Trust::BuiltHere})
        .first->second;
  }
  std::optional<engine::StoredLayer> find(const LayerRef& ref) override {
    for (const auto& [name, layer] : layers)
      if (ref.digest_prefix ? layer.digest.hex().starts_with(*ref.digest_prefix) : name == ref.str()) return layer;
    return std::nullopt;
  }
  engine::StoredLayer get(const LayerRef& ref) override {
    if (std::optional<engine::StoredLayer> layer = find(ref)) return *std::move(layer);
    throw usage_error("there is no layer " + ref.str());
  }
  std::vector<engine::StoredLayer> list() override {
    std::vector<engine::StoredLayer> all;
    for (const auto& [ref, layer] : layers) all.push_back(layer);
    return all;
  }
  void register_lock(const std::filesystem::path& file, std::span<const Digest> digests) override {
    locks[file] = {digests.begin(), digests.end()};
  }
  void mark_trusted(const Digest& layer) override { trusted.push_back(layer); }
  std::filesystem::path blob_path(const Digest& blob) override { return directory_ / blob.hex(); }
  bool has_blob(const Digest& blob) override { return std::filesystem::exists(blob_path(blob)); }
  void confirm(std::span<const Digest>) override {}
  void tag(const Digest&, const LayerName&, const std::string&) override {}
  bool untag(const LayerName&, const std::string&) override { return false; }

 protected:
  /// Takes a file of the directory in as a blob.
  Blob take(const std::filesystem::path& path, BlobRole role) {
    const Digest digest = digest_of_file(path.native());
    const std::uint64_t size = std::filesystem::file_size(path);
    std::filesystem::rename(path, blob_path(digest));
    return {role, digest, size};
  }

  std::filesystem::path directory_;

 private:
  class Session : public engine::BlobSession {
   public:
    explicit Session(TestStore& store) : store_(store) {}
    TempFile new_file() override { return TempFile(store_.directory_); }
    Blob adopt(TempFile file, BlobRole role, std::optional<Digest> known) override {
      const Digest digest = digest_of_file(file.path().native());
      if (known && *known != digest) throw Error(ErrorKind::Internal, "hashed wrongly while writing");
      const std::uint64_t size = std::filesystem::file_size(file.path());
      file.publish(store_.blob_path(digest));
      return {role, digest, size};
    }
    bool hold(const Digest& digest) override { return store_.has_blob(digest); }

   private:
    TestStore& store_;
  };
};

}  // namespace dsec::testing
