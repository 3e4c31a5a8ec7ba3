#include "layers/image_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "layers/erofs_read/erofs_image.h"
#include "layers/oci/image_source.h"

namespace dsec::layers {
namespace {

// What is compared at a time.
constexpr std::uint64_t kPiece = 1 << 20;

/// The index of one image of the layer, made file by file.
class IndexWriter {
 public:
  IndexWriter(const ImageSource& source, ErofsImage& meta, const Blob& data)
      : source_(source), meta_(meta), index_{data.digest, data.size, {}, {}} {}

  void add(const FileContent& content) {
    const auto inode = meta_.find(content.path);
    if (!inode || inode->size != content.size) throw contradiction("has not the file " + quote(content.path));
    meta_.stored(*inode, [&](const ErofsStored& stored) {
      // mkfs.erofs keeps equal pieces of files once.
      if (seen_.insert(stored.address).second) add(stored, content, part_of(content.archive));
    });
  }

  DataIndex finish() {
    std::sort(index_.runs.begin(), index_.runs.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    for (std::size_t i = 1; i < index_.runs.size(); ++i)
      if (index_.runs[i].at < index_.runs[i - 1].at + index_.runs[i - 1].length)
        throw contradiction("has files that lie upon each other");
    verify();
    if (index_.bytes().size() > kLargestDataIndex)
      throw failure("the image has " + std::to_string(index_.runs.size()) +
                    " files and pieces of files, more than an index can name")
          .hint("dsec import and dsec publish, which make a copy of the contents");
    return std::move(index_);
  }

 private:
  static Error contradiction(const std::string& what) {
    return {ErrorKind::Internal, "the image that was made " + what};
  }

  std::uint32_t part_of(std::size_t archive) {
    const DataIndex::Part& layer = source_.layers().at(archive);
    const auto known = std::find(index_.parts.begin(), index_.parts.end(), layer);
    const auto number = static_cast<std::uint32_t>(known - index_.parts.begin());
    if (known == index_.parts.end()) {
      index_.parts.push_back(layer);
      archives_.push_back(source_.stack().archive(archive));
    }
    return number;
  }

  // What of a stored piece the archive has; the rest are holes of a sparse file.
  void add(const ErofsStored& stored, const FileContent& content, std::uint32_t part) {
    const std::uint64_t end = stored.offset + stored.length;
    auto segment = std::partition_point(content.segments.begin(), content.segments.end(),
                                        [&](const Segment& s) { return s.at + s.size <= stored.offset; });
    for (; segment != content.segments.end() && segment->at < end; ++segment) {
      const std::uint64_t from = std::max(stored.offset, segment->at), to = std::min(end, segment->at + segment->size);
      if (from < to)
        index_.runs.push_back(
            {stored.address + (from - stored.offset), to - from, part, segment->offset + (from - segment->at)});
    }
  }

  // Whoever follows the index sees at once when it is wrong; but then it is published.
  void verify() const {
    Sha256 hash;
    std::string bytes;
    for (std::uint64_t at = 0; at < index_.size; at += bytes.size()) {
      bytes.assign(std::min(kPiece, index_.size - at), '\0');
      for (const PartRead& read : reads_of(index_, at, bytes.size()))
        for (const PartRead::Piece& piece : read.pieces)
          read_part(read.part, read.offset + piece.from, bytes.data() + piece.to, piece.length);
      hash.update(bytes);
    }
    if (hash.finish() != index_.data) throw contradiction("has other bytes than its index leads to");
  }

  void read_part(std::uint32_t part, std::uint64_t offset, char* to, std::uint64_t size) const {
    const FileSpan& archive = archives_.at(part);
    while (size > 0) {
      const ssize_t got = ::pread(archive.file->get(), to, size, static_cast<off_t>(archive.offset + offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw system_error("read a layer of the image", got < 0 ? errno : EIO);
      to += got;
      offset += static_cast<std::uint64_t>(got);
      size -= static_cast<std::uint64_t>(got);
    }
  }

  const ImageSource& source_;
  ErofsImage& meta_;
  DataIndex index_;
  std::vector<FileSpan> archives_;  // of the parts
  std::unordered_set<std::uint64_t> seen_;
};

}  // namespace

engine::ImageIndex index_image(engine::LayerStore& store, engine::BlobSession& session, const std::string& reference,
                               const engine::OpenRemoteImage& open, const std::filesystem::path& spool,
                               const ImportOptions& options, Progress& progress) {
  ImageSource source(reference, open, spool);
  source.require_plain_layers();
  LayerManifest layer = make_layer(session, source, options, progress);
  const Descriptor& manifest = source.manifest();
  engine::ImageIndex made{std::move(layer), {}, {manifest.digest, manifest.size, manifest.media_type}};
  const std::string step = "index " + options.name.str();
  progress.begin(step);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < made.layer.images.size(); ++i) {
    const LayerImage& image = made.layer.images[i];
    ErofsImage meta(open_file(store.blob_path(image.blob(BlobRole::Meta).digest), O_RDONLY | O_CLOEXEC), {},
                    "of " + options.name.str());
    IndexWriter writer(source, meta, image.blob(BlobRole::Data));
    source.stack().contents(i, [&](const FileContent& content) { writer.add(content); });
    made.indexes.push_back(writer.finish());
    bytes += made.indexes.back().bytes().size();
  }
  progress.end(step, format_size(bytes));
  return made;
}

}  // namespace dsec::layers
