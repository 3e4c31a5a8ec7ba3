#include "layers/archive/archive_source.h"

#include <algorithm>

#include "core/base/error.h"
#include "layers/archive/content_reader.h"
#include "layers/archive/decompress.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_reader.h"

namespace dsec::layers {
namespace {

// Of the names in a warning.
constexpr std::size_t kNamesShown = 5;

}  // namespace

ArchiveStack::ArchiveStack(LayerTree::Markers markers, const SourceOptions& options)
    : options_(options),
      rules_(markers == LayerTree::Markers::Ordinary ? TarReader::Rules::Posix : TarReader::Rules::Runtimes),
      budget_(options.limits),
      tree_(markers, options.limits) {}

Digest ArchiveStack::add(const FileSpan& archive, const ArchiveClaims& claims, Progress& progress) {
  return attempt("cannot read " + claims.name, [&] {
    FileSpan::Stamp stamp = archive.stamp();
    SpanStream span(archive);
    HashingStream packed(span);
    UnpackedStream unpacked(packed);
    // Where nothing is packed the two digests are one.
    const bool same = unpacked.packing() == Packing::None;
    HashingStream content(unpacked);
    ByteStream& stream = same ? static_cast<ByteStream&>(unpacked) : content;
    budget_.begin_archive(archive.size);
    TarReader reader(stream, budget_, rules_);
    std::optional<Error> entry_error;
    try {
      while (auto member = reader.next()) {
        for (std::string& name : member->dropped) ++dropped_xattrs_[std::move(name)];
        tree_.add(std::move(*member));
        progress.advance(claims.name, span.position(), archive.size);
      }
      if (reader.has_trailing_data()) with_trailing_data_.push_back(claims.name);
    } catch (Error& error) {
      // Wrong bytes explain what is wrong with their entries, so a wrong digest is the better answer; but to learn it
      // the rest is read only as it lies there, never unpacked.
      entry_error = std::move(error);
    }
    std::uint64_t size = 0;
    std::optional<Digest> unpacked_digest;
    if (!entry_error && !same) {
      unpacked_digest = content.finish();
      size = content.position();
    }
    const Digest packed_digest = packed.finish();
    if (archive.arrival) stamp = archive.stamp();  // it was still being written
    if (claims.packed && *claims.packed != packed_digest)
      throw refusal(Refusal::DigestMismatch,
                    "the bytes have the digest " + packed_digest.str() + ", not " + claims.packed->str());
    if (entry_error) throw std::move(*entry_error);
    if (same) {
      unpacked_digest = packed_digest;
      size = archive.size;
    }
    if (claims.unpacked && *claims.unpacked != *unpacked_digest)
      throw refusal(Refusal::DiffIdMismatch, "it unpacks to the digest " + unpacked_digest->str() +
                                                 ", but the image config says " + claims.unpacked->str());

    if (tree_.image_has_entries() && tree_.archive_has_entries() && image_bytes_ + size > options_.collapse_limit) {
      images_.push_back(tree_.end_image());
      image_bytes_ = 0;
    }
    archives_.push_back(archive);
    stamps_.push_back(stamp);
    if (tree_.end_archive()) image_bytes_ += size;
    return *unpacked_digest;
  });
}

std::size_t ArchiveStack::finish() {
  if (images_.empty() || tree_.image_has_entries()) images_.push_back(tree_.end_image());
  return images_.size();
}

void ArchiveStack::emit(std::size_t image, TreeSink& sink) const {
  std::map<std::uint32_t, ContentReader> readers;
  for (const ImageEntry& from : images_.at(image)) {
    Entry entry;
    if (!from.inode) {
      entry.path = from.path;
      entry.type = EntryType::CharDevice;  // 0:0, a whiteout
      sink.entry(entry);
      continue;
    }
    entry = from.inode->entry;
    entry.path = from.path;
    if (from.opaque) entry.xattrs["trusted.overlay.opaque"] = "y";
    if (!from.link_to.empty()) {
      entry.type = EntryType::HardLink;
      entry.target = from.link_to;
      entry.size = 0;
    }
    sink.entry(entry);
    if (entry.type != EntryType::File || entry.size == 0) continue;
    // Packed archives hold large buffers, and the entries come archive by archive.
    readers.erase(readers.begin(), readers.lower_bound(from.inode->layer));
    readers.try_emplace(from.inode->layer, archives_.at(from.inode->layer))
        .first->second.copy(from.inode->segments, entry.size, sink);
  }
  // What was written is what was verified only if nobody wrote to the files in between.
  for (std::size_t i = 0; i < archives_.size(); ++i)
    if (archives_[i].stamp() != stamps_[i]) throw failure("the input was changed while it was imported");
}

void ArchiveStack::contents(std::size_t image, const std::function<void(const FileContent&)>& visit) const {
  for (const ImageEntry& from : images_.at(image)) {
    if (!from.inode || !from.link_to.empty()) continue;
    const Entry& entry = from.inode->entry;
    if (entry.type != EntryType::File || entry.size == 0) continue;
    visit({from.path, entry.size, from.inode->layer, from.inode->segments});
  }
}

std::vector<std::string> ArchiveStack::warnings() const {
  std::vector<std::string> warnings;
  for (const std::string& name : with_trailing_data_)
    warnings.push_back(name + " has bytes behind its end, which were not read as entries");
  if (dropped_xattrs_.empty()) return warnings;
  std::string names;
  std::size_t shown = 0;
  for (const auto& [name, count] : dropped_xattrs_) {
    if (shown++ == kNamesShown) break;
    names += (names.empty() ? "" : ", ") + quote(name) + " (" + std::to_string(count) + ")";
  }
  if (dropped_xattrs_.size() > kNamesShown) names += ", …";
  warnings.push_back(
      "extended attributes that belong to a host, that overlayfs would act on or that such an entry cannot have were "
      "left out: " +
      names);
  return warnings;
}

}  // namespace dsec::layers
