#pragma once

#include <filesystem>
#include <memory>

#include "core/base/progress.h"
#include "core/engine/remote_image.h"
#include "layers/oci/image_files.h"

namespace dsec::layers {

/// Of an image in a registry. Documents are fetched when they are asked for. Layers are fetched in the background,
/// three at a time and in the order in which they are asked for, into unlinked files in `spool`: they can be read from
/// the start while they arrive, and nothing is left of them whatever happens. Never more is fetched than the manifest
/// says, nor than fits. Destroying the object ends what is under way.
class RemoteFiles : public ImageFiles {
 public:
  /// Both must outlive it.
  RemoteFiles(engine::RemoteImage& image, std::filesystem::path spool, Progress& progress);
  ~RemoteFiles() override;

  /// There are only blobs.
  std::optional<FileSpan> find(const std::string&) const override { return std::nullopt; }
  std::optional<FileSpan> blob(BlobUse use, const Digest& digest, std::uint64_t size) const override;

 private:
  class Downloads;
  std::unique_ptr<Downloads> downloads_;
};

}  // namespace dsec::layers
