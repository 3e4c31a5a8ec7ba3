#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "layers/archive/byte_stream.h"
#include "layers/source.h"

namespace dsec::layers {

/// What a blob is read for.
enum class BlobUse { Manifest, Document, Layer };

/// The named files that an image consists of, wherever they lie.
class ImageFiles {
 public:
  virtual ~ImageFiles() = default;
  /// A blob of an OCI image, which has a file of its own where nothing else is said. `size` is what its descriptor
  /// says; whoever reads verifies it, and the digest.
  virtual std::optional<FileSpan> blob(BlobUse use, const Digest& digest, std::uint64_t size) const;
  /// Empty when there is none. `path` is relative, without ".." of its own.
  virtual std::optional<FileSpan> find(const std::string& path) const = 0;
};

/// In a directory.
class DirectoryFiles : public ImageFiles {
 public:
  explicit DirectoryFiles(std::filesystem::path root) : root_(std::move(root)) {}
  std::optional<FileSpan> find(const std::string& path) const override;

 private:
  std::filesystem::path root_;
};

/// In a tar archive, whose symlinks and hard links lead to other files of the archive and nowhere else. One that is
/// packed is unpacked into an unlinked file in `spool` first, since its files are wanted in any order.
class ArchiveFiles : public ImageFiles {
 public:
  ArchiveFiles(const std::filesystem::path& archive, const std::filesystem::path& spool, const InputLimits& limits);
  std::optional<FileSpan> find(const std::string& path) const override;

 private:
  std::string resolve(const std::string& path) const;

  std::map<std::string, FileSpan> files_;
  std::map<std::string, std::string> links_;  // to paths relative to the root of the archive
};

}  // namespace dsec::layers
