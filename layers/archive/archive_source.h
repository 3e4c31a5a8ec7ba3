#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layers/archive/byte_stream.h"
#include "layers/archive/layer_tree.h"
#include "layers/source.h"

namespace dsec::layers {

/// What a document says about an archive, to be verified.
struct ArchiveClaims {
  std::string name;                ///< for messages: "layer 2 of 3 (sha256:…)"
  std::optional<Digest> packed;    ///< digest of the bytes as they lie there
  std::optional<Digest> unpacked;  ///< digest of what they unpack to
};

/// Where the contents of a file come from.
struct FileContent {
  const std::string& path;  ///< the first of its names
  std::uint64_t size;
  std::size_t archive;                ///< its number, in the order of add()
  std::span<const Segment> segments;  ///< in the unpacked archive
};

/// Archives applied one upon the other: what a plain archive and an image have in common.
class ArchiveStack {
 public:
  ArchiveStack(LayerTree::Markers markers, const SourceOptions& options);

  /// Reads it whole: verifies the claims and the limits, and applies it upon the ones before. Returns the digest of
  /// what it unpacks to.
  Digest add(const FileSpan& archive, const ArchiveClaims& claims, Progress& progress);
  /// No archive comes any more. Returns the number of images, at least one.
  std::size_t finish();
  void emit(std::size_t image, TreeSink& sink) const;
  /// The files of an image that are not empty, in the order in which emit() has them.
  void contents(std::size_t image, const std::function<void(const FileContent&)>& visit) const;
  const FileSpan& archive(std::size_t number) const { return archives_.at(number); }
  /// What people should know about what was left out.
  std::vector<std::string> warnings() const;

 private:
  struct Reading;
  Reading read(SpanStream& span, const FileSpan& archive, const std::string& name, Progress& progress);
  Digest apply(const FileSpan& archive, const ArchiveClaims& claims, Reading reading);

  const SourceOptions options_;
  const TarReader::Rules rules_;
  InputBudget budget_;
  LayerTree tree_;
  std::vector<FileSpan> archives_;
  std::vector<FileSpan::Stamp> stamps_;  // when they were verified
  std::vector<std::vector<ImageEntry>> images_;
  std::uint64_t image_bytes_ = 0;
  std::map<std::string, std::uint64_t> dropped_xattrs_;  // name and how often
  std::vector<std::string> with_trailing_data_;          // names of archives
};

}  // namespace dsec::layers
