#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/child_process.h"
#include "core/engine/layer_store.h"
#include "layers/erofs/data_hash.h"
#include "layers/erofs/mkfs.h"
#include "layers/source.h"

namespace dsec::layers {

struct ErofsOptions {
  std::string compression = "none";  ///< "none" (meta, data and chunks), "lz4" or "zstd" (meta alone)
  std::string uuid;                  ///< of the image
};

/// Writes one image: passes entries to mkfs.erofs through a pipe, as a tar archive in normal form, so that no tree is
/// ever unpacked. The same entries make the same bytes. Destroying it before finish() kills mkfs.erofs and leaves
/// nothing behind.
class ErofsWriter : public TreeSink {
 public:
  ErofsWriter(const Mkfs& mkfs, engine::BlobSession& session, ErofsOptions options);
  ~ErofsWriter() override;

  void entry(const Entry& entry) override;
  void data(std::string_view bytes) override;
  /// Waits for mkfs.erofs, takes the blobs into the session, and returns them. Throws Error with what mkfs.erofs said.
  LayerImage finish();
  /// Directories that were made only because something lies in them; "" is the root. Complete after finish().
  const std::set<std::string>& implicit_directories() const noexcept { return implicit_; }
  /// All directories of the image.
  const std::set<std::string, std::less<>>& directories() const noexcept { return directories_; }

 private:
  void start(const Mkfs& mkfs);
  void make_parents(std::string_view path);
  void put(std::string_view bytes);
  void flush();
  void end_content();
  [[noreturn]] void mkfs_failed(const ExitStatus& status);

  engine::BlobSession& session_;
  ErofsOptions options_;
  TempFile meta_;
  std::optional<TempFile> data_;
  UniqueFd messages_;  // what mkfs.erofs prints
  UniqueFd pipe_;
  std::optional<ChildProcess> child_;
  std::unique_ptr<DataHash> data_hash_;
  std::string buffer_;
  std::set<std::string, std::less<>> directories_;
  std::set<std::string> implicit_;
  std::uint64_t content_left_ = 0, padding_ = 0;
};

/// An RFC 4122 UUID (version 8: own scheme) made of a digest.
std::string uuid_of(const Digest& digest);

}  // namespace dsec::layers
