#include <sys/stat.h>

#include <limits>

#include "core/base/error.h"
#include "layers/archive/decompress.h"
#include "layers/archive/tar_header.h"
#include "layers/archive/tar_source.h"
#include "layers/dir/tree_digest.h"
#include "layers/dockerfile/copy_files.h"

namespace dsec::layers::dockerfile {
namespace {

// As others have it: nobody but its owner may read what came from a URL.
constexpr std::uint32_t kFetchedMode = 0600;

// Whether a file is a tar archive, whatever it is packed with: its first block is a header.
bool is_archive(const FileSpan& file) {
  try {
    SpanStream span(file);
    UnpackedStream unpacked(span);
    std::string block;
    while (block.size() < kTarBlock) {
      const std::string_view piece = unpacked.next();
      if (piece.empty()) return false;
      block += piece.substr(0, kTarBlock - block.size());
    }
    const TarHeader header(block);
    return !header.is_zero() && header.checksum_fits();
  } catch (const Error&) {
    return false;
  }
}

class Selecting {
 public:
  Selecting(CopyOrigin& origin, const CopyFiles& copy) : origin_(origin), copy_(copy) {
    for (const std::string& pattern : copy.exclude) exclude_.add(pattern);
  }

  std::vector<PickedSource> run(const std::string& source) {
    std::vector<PickedSource> out;
    if (!Glob::is_pattern(source)) {
      out.push_back(literal(source));
      return out;
    }
    for (const std::string& path : matches(source)) {
      if (left_out(path, base_of(path))) continue;
      out.push_back(pick(path, *origin_.find(origin_.resolve(path))));
    }
    return out;
  }

 private:
  // Whether a name is not to be copied, nor gone into.
  bool left_out(const std::string& path, const std::string& below) const {
    return origin_.ignored(path) != 0 || exclude_.excludes(below) || exclude_.excludes(path);
  }
  bool may_have_exceptions() const { return origin_.has_exceptions() || exclude_.has_exceptions(); }

  PickedSource literal(const std::string& source) {
    const std::string path = origin_.resolve(source);
    const std::optional<Entry> entry = origin_.find(path);
    if (!entry) throw usage_error("there is no " + quote(source));
    const int line = path.empty() ? 0 : origin_.ignored(path);
    if (line != 0 && !(entry->type == EntryType::Directory && origin_.has_exceptions()))
      throw usage_error(quote(source) + " is left out by line " + std::to_string(line) + " of .dockerignore");
    PickedSource picked = pick(path, *entry);
    const std::size_t end = source.find_last_not_of('/');
    if (end != std::string::npos) picked.name = base_of(source.substr(0, end + 1));
    return picked;
  }

  PickedSource pick(const std::string& path, const Entry& entry) {
    PickedSource picked;
    picked.name = base_of(path);
    picked.directory = entry.type == EntryType::Directory;
    const std::string real = origin_.resolve(path);
    if (!picked.directory) {
      if (!exclude_.excludes(picked.name)) picked.items.push_back({real, "", entry});
      return picked;
    }
    picked.items.push_back({real, "", entry});
    inside(real, picked.items);
    return picked;
  }

  void inside(const std::string& directory, std::vector<PickedSource::Item>& items) {
    struct Waiting {
      std::string path, below;
    };
    std::vector<Waiting> waiting = {{directory, ""}};
    std::vector<PickedSource::Item> unsure;  // directories that are left out unless something in them is not
    while (!waiting.empty()) {
      const Waiting at = std::move(waiting.back());
      waiting.pop_back();
      if (!at.below.empty()) {
        const std::optional<Entry> entry = origin_.find(at.path);
        if (!entry) continue;  // a socket, or something on another filesystem
        const bool folder = entry->type == EntryType::Directory;
        const bool out = left_out(at.path, at.below);
        while (!unsure.empty() && !at.below.starts_with(unsure.back().below + "/")) unsure.pop_back();
        if (out && folder && may_have_exceptions()) {
          unsure.push_back({at.path, at.below, *entry});
        } else if (out) {
          continue;
        } else {
          for (PickedSource::Item& above : unsure) items.push_back(std::move(above));
          unsure.clear();
          items.push_back({at.path, at.below, *entry});
        }
        if (!folder) continue;
      }
      const std::vector<std::string> names = origin_.names(at.path);
      for (auto name = names.rbegin(); name != names.rend(); ++name)
        waiting.push_back({joined(at.path, *name), joined(at.below, *name)});
    }
  }

  std::vector<std::string> matches(const std::string& pattern) {
    std::vector<std::string> found = {""};
    for (std::size_t at = 0; at < pattern.size();) {
      const std::size_t slash = std::min(pattern.find('/', at), pattern.size());
      const std::string part = pattern.substr(at, slash - at);
      at = slash + 1;
      if (part.empty() || part == ".") continue;
      const Glob glob = Glob::parse(part, Glob::Stars::Ordinary);
      std::vector<std::string> next;
      for (const std::string& directory : found) {
        const std::string real = origin_.resolve(directory);
        const std::optional<Entry> entry = origin_.find(real);
        if (!entry || entry->type != EntryType::Directory) continue;
        for (const std::string& name : origin_.names(real))
          if (glob.matches(name) && origin_.find(origin_.resolve(joined(real, name))))
            next.push_back(joined(real, name));
      }
      found = std::move(next);
    }
    return found;
  }

  CopyOrigin& origin_;
  const CopyFiles& copy_;
  IgnoreList exclude_;
};

// The entries of an archive, without contents.
struct Listing final : TreeSink {
  std::vector<PickedSource::Item> items;
  void entry(const Entry& entry) override { items.push_back({entry.path, entry.path, entry}); }
  void data(std::string_view) override {}
};

}  // namespace

Selection Selection::make(CopyOrigin& origin, const CopyFiles& copy, const std::filesystem::path& spool) {
  Selection selection;
  selection.origin_ = &origin;
  selection.spool_ = spool;
  selection.inlines_ = copy.inlines;
  Selecting selecting(origin, copy);
  auto* context = dynamic_cast<ContextOrigin*>(&origin);
  for (const std::string& source : copy.sources)
    for (PickedSource& picked : selecting.run(source)) {
      const bool file = !picked.directory && !picked.items.empty() && picked.items[0].entry.type == EntryType::File;
      if (copy.unpack && context && file && is_archive(context->open(picked.items[0].path)))
        picked.packed = picked.items[0].path;
      if (!picked.packed.empty() && copy.mode)
        throw usage_error("--chmod for " + quote(source) + ", an archive that is unpacked, is not supported");
      selection.sources_.push_back(std::move(picked));
    }
  // A pattern may well stand for a file that is not always there, beside others that are.
  if (selection.sources_.empty() && selection.inlines_.empty() && !copy.sources.empty() && copy.urls.empty() &&
      copy.repositories.empty())
    throw usage_error("there is nothing that fits " + quote(copy.sources.front()));
  return selection;
}

void Selection::open_archives() {
  for (PickedSource& picked : sources_) {
    if (picked.packed.empty() || picked.archive) continue;
    attempt("unpack " + quote(picked.packed), [&] {
      const FileSpan span = dynamic_cast<ContextOrigin&>(*origin_).open(picked.packed);
      Progress silent;
      picked.kept = span.file;
      picked.archive = std::make_unique<TarSource>("/proc/self/fd/" + std::to_string(span.file->get()), spool_);
      SourceOptions options;
      options.collapse_limit = std::numeric_limits<std::uint64_t>::max();
      picked.archive->examine(options, silent);
      Listing listing;
      picked.archive->emit(0, listing);
      picked.items = std::move(listing.items);
      picked.directory = true;
    });
  }
}

void Selection::add_fetched(std::string name, UniqueFd file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw system_error("stat a file that was fetched");
  PickedSource picked;
  picked.name = std::move(name);
  Entry entry{.mode = kFetchedMode, .size = static_cast<std::uint64_t>(info.st_size)};
  picked.items.push_back({picked.name, "", std::move(entry)});
  picked.kept = std::make_shared<const UniqueFd>(std::move(file));
  sources_.push_back(std::move(picked));
}

void Selection::add_commit(std::unique_ptr<Source> source, Progress& progress) {
  PickedSource picked;
  picked.directory = true;
  source->examine({}, progress);
  Listing listing;
  source->emit(0, listing);
  picked.items = std::move(listing.items);
  picked.archive = std::move(source);
  sources_.push_back(std::move(picked));
}

Digest Selection::digest() {
  TreeDigest digest;
  for (const PickedSource& source : sources_) {
    if (!source.packed.empty()) {
      digest.entry({.path = "archive", .type = EntryType::Directory});
      digest.data(origin_->content_digest(source.packed).hex());
      continue;
    }
    digest.entry({.path = source.name, .type = source.directory ? EntryType::Directory : EntryType::File});
    for (const PickedSource::Item& item : source.items) {
      Entry entry = item.entry;
      entry.path = item.below;
      if (!source.archive) {
        entry.uid = entry.gid = 0;
        entry.mtime = {};
      }
      digest.entry(entry);
      // What was fetched is told apart by its own digest, in the key of the step.
      if (!source.archive && !source.kept && entry.type == EntryType::File)
        digest.data(origin_->content_digest(item.path).hex());
    }
    if (source.archive) source.archive->emit(0, digest);
  }
  for (const CopyFiles::Inline& file : inlines_) {
    digest.entry({.path = file.name, .size = file.content.size()});
    digest.data(file.content);
  }
  return digest.finish();
}

}  // namespace dsec::layers::dockerfile
