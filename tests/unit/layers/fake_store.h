#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/layer_store.h"

/// A store in one directory: real blobs, an index in memory.
class FakeStore : public dsec::engine::LayerStore {
 public:
  explicit FakeStore(std::filesystem::path directory) : directory_(std::move(directory)) {
    dsec::make_directories(directory_);
  }

  class Session : public dsec::engine::BlobSession {
   public:
    explicit Session(FakeStore& store) : store_(store) {}
    dsec::TempFile new_file() override { return dsec::TempFile(store_.directory_); }
    dsec::Blob adopt(dsec::TempFile file, dsec::BlobRole role, std::optional<dsec::Digest> known) override {
      const dsec::Digest digest = dsec::digest_of_file(file.path().native());
      if (known && *known != digest) throw dsec::Error(dsec::ErrorKind::Internal, "hashed wrongly while writing");
      const std::uint64_t size = std::filesystem::file_size(file.path());
      file.publish(store_.blob_path(digest));
      return {role, digest, size};
    }
    bool hold(const dsec::Digest& digest) override { return store_.has_blob(digest); }

   private:
    FakeStore& store_;
  };

  std::unique_ptr<dsec::engine::BlobSession> begin_session() override { return std::make_unique<Session>(*this); }
  dsec::engine::StoredLayer add(const dsec::LayerManifest& manifest, const std::string& tag, dsec::engine::Trust trust,
                                dsec::engine::BlobSession&, const std::map<std::string, std::string>& labels) override {
    layers_.push_back({manifest.digest(), manifest, {tag}, labels, {}, trust == dsec::engine::Trust::BuiltHere});
    return layers_.back();
  }
  std::optional<dsec::engine::StoredLayer> find(const dsec::LayerRef&) override { return std::nullopt; }
  dsec::engine::StoredLayer get(const dsec::LayerRef& ref) override { throw dsec::usage_error("no " + ref.str()); }
  std::vector<dsec::engine::StoredLayer> list() override { return layers_; }
  void tag(const dsec::Digest&, const dsec::LayerName&, const std::string&) override {}
  bool untag(const dsec::LayerName&, const std::string&) override { return false; }
  void confirm(std::span<const dsec::Digest>) override {}
  void register_lock(const std::filesystem::path&, std::span<const dsec::Digest>) override {}
  void mark_trusted(const dsec::Digest&) override {}
  std::filesystem::path blob_path(const dsec::Digest& blob) override { return directory_ / blob.hex(); }
  bool has_blob(const dsec::Digest& blob) override { return std::filesystem::exists(blob_path(blob)); }

  std::size_t files() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory_)) ++count;
    return count;
  }

 private:
  std::filesystem::path directory_;
  std::vector<dsec::engine::StoredLayer> layers_;
};
