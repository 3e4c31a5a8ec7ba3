#pragma once

#include "registry/store/local_store.h"

namespace dsec::registry {

/// Records in the index which blobs a process is bringing in, each before its file appears: so there is no moment at
/// which gc could take it.
class LocalStore::Session final : public engine::BlobSession {
 public:
  explicit Session(LocalStore& store);
  ~Session() override;

  TempFile new_file() override;
  Blob adopt(TempFile file, BlobRole role, std::optional<Digest> known) override;
  bool hold(const Digest& digest) override;

  std::int64_t id() const noexcept { return id_; }
  const LocalStore& store() const noexcept { return store_; }
  bool hold_in_place(const Blob& blob, const std::filesystem::path& path);
  void hold_on_demand(const Blob& blob, const Digest& chunks, const BlobOrigin& origin);
  void take_file(const Blob& blob, const std::filesystem::path& file);

 private:
  bool is_whole(const Digest& digest, std::uint64_t size);
  void mark_whole(const Digest& digest, std::uint64_t size);
  bool record(const Digest& digest, std::optional<std::uint64_t> size);
  LocalStore& store_;
  std::int64_t id_;
};

/// Whether verification found other bytes in the blob's file.
bool is_damaged(Database& database, const Digest& blob);
/// Whether a registry is known that gives the blob, of this size, piece by piece.
bool has_source(Database& database, const Blob& blob);

}  // namespace dsec::registry
