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

/// What was found in an archive whose entries wait in the tree.
struct ArchiveStack::Reading {
  FileSpan::Stamp stamp;
  std::optional<Digest> packed, unpacked;  ///< the second is empty when an entry is wrong
  std::uint64_t size = 0;                  ///< unpacked
  std::optional<Error> entry_error;
  std::map<std::string, std::uint64_t> dropped_xattrs;
  bool trailing_data = false;
};

Digest ArchiveStack::add(const FileSpan& archive, const ArchiveClaims& claims, Progress& progress) {
  return attempt("cannot read " + claims.name, [&] {
    for (;;) {
      SpanStream span(archive);
      const InputBudget before = budget_;
      std::optional<Reading> reading;
      try {
        reading = read(span, archive, claims.name, progress);
      } catch (const Error&) {
        if (span.stays()) throw;
      }
      // Where it comes once more from another place, what is wrong with it is the first one's fault.
      if (reading && span.stays()) return apply(archive, claims, std::move(*reading));
      budget_ = before;
      tree_.drop_archive();
    }
  });
}

ArchiveStack::Reading ArchiveStack::read(SpanStream& span, const FileSpan& archive, const std::string& name,
                                         Progress& progress) {
  Reading reading{.stamp = archive.stamp(), .packed = {}, .unpacked = {}, .entry_error = {}, .dropped_xattrs = {}};
  HashingStream packed(span);
  UnpackedStream unpacked(packed);
  // Where nothing is packed the two digests are one.
  const bool same = unpacked.packing() == Packing::None;
  HashingStream content(unpacked);
  ByteStream& stream = same ? static_cast<ByteStream&>(unpacked) : content;
  budget_.begin_archive(archive.size);
  TarReader reader(stream, budget_, rules_);
  try {
    while (auto member = reader.next()) {
      for (std::string& xattr : member->dropped) ++reading.dropped_xattrs[std::move(xattr)];
      tree_.add(std::move(*member));
      progress.advance(name, span.position(), archive.size);
    }
    reading.trailing_data = reader.has_trailing_data();
  } catch (Error& error) {
    // Wrong bytes explain what is wrong with their entries, so a wrong digest is the better answer; but to learn it
    // the rest is read only as it lies there, never unpacked.
    reading.entry_error = std::move(error);
  }
  if (!reading.entry_error && !same) {
    reading.unpacked = content.finish();
    reading.size = content.position();
  }
  reading.packed = packed.finish();
  if (!reading.entry_error && same) {
    reading.unpacked = reading.packed;
    reading.size = archive.size;
  }
  return reading;
}

Digest ArchiveStack::apply(const FileSpan& archive, const ArchiveClaims& claims, Reading reading) {
  if (claims.packed && *claims.packed != *reading.packed)
    throw refusal(Refusal::DigestMismatch,
                  "the bytes have the digest " + reading.packed->str() + ", not " + claims.packed->str());
  if (reading.entry_error) throw std::move(*reading.entry_error);
  if (claims.unpacked && *claims.unpacked != *reading.unpacked)
    throw refusal(Refusal::DiffIdMismatch, "it unpacks to the digest " + reading.unpacked->str() +
                                               ", but the image config says " + claims.unpacked->str());

  for (const auto& [name, count] : reading.dropped_xattrs) dropped_xattrs_[name] += count;
  if (reading.trailing_data) with_trailing_data_.push_back(claims.name);
  if (tree_.image_has_entries() && tree_.archive_has_entries() &&
      image_bytes_ + reading.size > options_.collapse_limit) {
    images_.push_back(tree_.end_image());
    image_bytes_ = 0;
  }
  archives_.push_back(archive);
  stamps_.push_back(archive.arrival ? archive.stamp() : reading.stamp);  // it was still being written
  if (tree_.end_archive()) image_bytes_ += reading.size;
  return *reading.unpacked;
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
