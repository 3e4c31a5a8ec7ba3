#include "layers/dockerfile/copy_files.h"

#include <unistd.h>

#include <charconv>
#include <set>

#include "core/base/error.h"

namespace dsec::layers::dockerfile {
namespace {

// 1980-01-01, as the `copy` steps of dsec.yaml have it: when a context was checked out must not count.
constexpr std::int64_t kFixedTime = 315532800;
constexpr std::uint32_t kDirectoryMode = 0755, kInlineMode = 0644;
constexpr std::size_t kLargestAccounts = 4 << 20;

std::string relative(const std::string& absolute) {
  const std::size_t first = absolute.find_first_not_of('/');
  return first == std::string::npos ? "" : absolute.substr(first);
}

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The fields of the line of /etc/passwd or /etc/group whose first is `name`.
std::vector<std::string> account(CopyOrigin& tree, const std::string& file, const std::string& name) {
  const std::string path = tree.resolve(file);
  const std::optional<Entry> entry = tree.find(path);
  if (entry && entry->type == EntryType::File) {
    const std::string text = tree.text(path, kLargestAccounts);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      std::vector<std::string> fields(1);
      for (const char c : text.substr(at, end - at)) {
        if (c == ':')
          fields.emplace_back();
        else
          fields.back() += c;
      }
      if (fields[0] == name && fields.size() > 3) return fields;
      at = end + 1;
    }
  }
  throw usage_error("/" + file + " has no " + quote(name));
}

std::uint32_t id_in(const std::string& file, const std::vector<std::string>& fields, std::size_t at) {
  const std::optional<std::uint32_t> id = number_of(fields[at]);
  if (!id) throw usage_error("/" + file + " gives " + quote(fields[0]) + " no number");
  return *id;
}

/// Directories that have to be made above something.
class NewDirectories {
 public:
  NewDirectories(CopyOrigin& into, std::pair<std::uint32_t, std::uint32_t> owner) : into_(into), owner_(owner) {}

  /// `path` and what is missing above it; it may exist.
  void need(const std::string& path, std::map<std::string, Entry>& made) {
    if (path.empty() || !seen_.insert(path).second) return;
    need(parent_of(path), made);
    if (made.contains(path)) return;
    if (!made.contains(parent_of(path))) {
      if (const std::optional<Entry> old = into_.find(path)) {
        if (old->type != EntryType::Directory) throw usage_error(quote("/" + path) + " is no directory");
        return;
      }
    }
    Entry entry{.path = path, .type = EntryType::Directory, .mode = kDirectoryMode};
    entry.uid = owner_.first;
    entry.gid = owner_.second;
    entry.mtime = {kFixedTime, 0};
    made.emplace(path, std::move(entry));
  }

 private:
  CopyOrigin& into_;
  std::pair<std::uint32_t, std::uint32_t> owner_;
  std::set<std::string> seen_;
};

class DirectorySource final : public Source {
 public:
  explicit DirectorySource(std::map<std::string, Entry> made) : made_(std::move(made)) {}
  SourceFacts examine(const SourceOptions&, Progress&) override {
    SourceFacts facts;
    facts.provenance.source = "build";
    const Entry& last = made_.rbegin()->second;
    facts.identity =
        Digest::of("directory " + std::to_string(last.uid) + ":" + std::to_string(last.gid) + " " + last.path);
    return facts;
  }
  void emit(std::size_t, TreeSink& sink) override {
    for (const auto& [path, entry] : made_) sink.entry(entry);
  }

 private:
  std::map<std::string, Entry> made_;
};

}  // namespace

std::pair<std::uint32_t, std::uint32_t> owner_ids(CopyOrigin& tree, const std::string& owner) {
  if (owner.empty()) return {0, 0};
  const std::size_t colon = owner.find(':');
  const std::string user = owner.substr(0, colon), group = colon == std::string::npos ? "" : owner.substr(colon + 1);
  std::pair<std::uint32_t, std::uint32_t> ids;
  if (const std::optional<std::uint32_t> number = number_of(user)) {
    ids = {*number, *number};
  } else {
    const std::vector<std::string> fields = account(tree, "etc/passwd", user);
    ids = {id_in("etc/passwd", fields, 2), id_in("etc/passwd", fields, 3)};
  }
  if (group.empty()) return ids;
  const std::optional<std::uint32_t> number = number_of(group);
  ids.second = number ? *number : id_in("etc/group", account(tree, "etc/group", group), 2);
  return ids;
}

/// Where the files of a selection go, and how they get there.
class Placement final : public Source {
 public:
  Placement(Selection& selection, CopyOrigin& into, const CopyFiles& copy)
      : selection_(selection),
        into_(into),
        copy_(copy),
        keep_times_(dynamic_cast<ContextOrigin*>(selection.origin_) == nullptr),
        owner_(owner_ids(into, copy.owner)) {
    const std::string to = into.resolve(relative(copy.to));
    const std::optional<Entry> old = into.find(to);
    bool directory = copy.into || (old && old->type == EntryType::Directory) ||
                     selection.sources_.size() + selection.inlines_.size() > 1;
    for (const PickedSource& source : selection.sources_) directory = directory || source.directory;
    NewDirectories missing(into, owner_);
    std::map<std::string, Entry> made;
    missing.need(directory ? to : parent_of(to), made);
    for (const auto& [path, entry] : made) slots_[path] = {entry, kNone, ""};
    for (std::size_t i = 0; i < selection.sources_.size(); ++i) add(i, to, directory);
    for (std::size_t i = 0; i < selection.inlines_.size(); ++i) {
      const CopyFiles::Inline& file = selection.inlines_[i];
      Entry entry{.mode = kInlineMode, .size = file.content.size()};
      put(directory ? joined(to, file.name) : to, finished(std::move(entry), false), selection.sources_.size() + i, "");
    }
  }

  bool nothing() const noexcept { return slots_.empty(); }

  SourceFacts examine(const SourceOptions&, Progress&) override {
    SourceFacts facts;
    facts.provenance.source = "build";
    facts.identity = Digest::of(selection_.digest().str() + copy_.to + "\n" + copy_.owner +
                                (copy_.mode ? std::to_string(*copy_.mode) : ""));
    return facts;
  }

  void emit(std::size_t, TreeSink& sink) override {
    for (const auto& [path, slot] : slots_)
      if (slot.entry.type != EntryType::File && slot.entry.type != EntryType::HardLink) sink.entry(slot.entry);
    for (const auto& [path, slot] : slots_) {
      if (slot.entry.type != EntryType::File) continue;
      const std::size_t inline_file = slot.source - selection_.sources_.size();
      if (slot.source < selection_.sources_.size() && selection_.sources_[slot.source].archive) continue;
      sink.entry(slot.entry);
      if (slot.source >= selection_.sources_.size())
        sink.data(selection_.inlines_[inline_file].content);
      else if (const auto& kept = selection_.sources_[slot.source].kept)
        send_file(kept->get(), slot.entry, sink);
      else
        selection_.origin_->content(slot.from, [&](std::string_view bytes) { sink.data(bytes); });
    }
    for (std::size_t i = 0; i < selection_.sources_.size(); ++i)
      if (selection_.sources_[i].archive) unpack(i, sink);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Slot {
    Entry entry;
    std::size_t source = kNone;  // index of the source, or of an inline file behind them
    std::string from;            // its path there
  };

  void add(std::size_t index, const std::string& to, bool directory) {
    const PickedSource& source = selection_.sources_[index];
    const std::string top = source.directory || !directory ? to : joined(to, source.name);
    folders_.clear();
    for (const PickedSource::Item& item : source.items) {
      // The directory that is copied gives what lies in it, not its own attributes.
      if (source.directory && item.below.empty()) continue;
      Entry entry = finished(item.entry, source.archive != nullptr);
      const std::string plain = joined(top, item.below);
      if (!source.archive) {
        put(plain, std::move(entry), index, item.path);
        continue;
      }
      if (entry.type == EntryType::HardLink) entry.target = through_links(joined(top, entry.target));
      const std::string path = through_links(plain);
      above(path);
      if (path != plain) moved_[{index, plain}] = path;
      put(path, std::move(entry), index, item.path);
    }
  }

  // What is there when all that was placed so far is.
  std::optional<Entry> shown(const std::string& path) const {
    if (const auto slot = slots_.find(path); slot != slots_.end()) return slot->second.entry;
    if (const auto above = slots_.find(parent_of(path)); above != slots_.end() && is_new(above->second))
      return std::nullopt;
    return into_.find(path);
  }

  // Where an entry of an archive comes to lie: where `lib` is a link to `usr/lib`, `lib/x` becomes `usr/lib/x`. A
  // directory made for it would hide all that the link shows.
  std::string through_links(const std::string& path) {
    const std::string folder = parent_of(path);
    const auto known = folders_.find(folder);
    const auto find = [this](const std::string& at) { return shown(at); };
    return joined(
        known != folders_.end() ? known->second : folders_.emplace(folder, resolve_in(find, folder)).first->second,
        base_of(path));
  }

  // An archive need not name the directories that its entries lie in.
  void above(const std::string& path) {
    for (std::string at = parent_of(path); !at.empty(); at = parent_of(at)) {
      if (const std::optional<Entry> old = shown(at)) {
        if (old->type != EntryType::Directory) throw usage_error(quote("/" + at) + " is no directory");
        return;
      }
      Entry entry{.path = at, .type = EntryType::Directory, .mode = kDirectoryMode};
      entry.uid = owner_.first;
      entry.gid = owner_.second;
      entry.mtime = {kFixedTime, 0};
      slots_[at] = {std::move(entry), kNone, ""};
    }
  }

  Entry finished(Entry entry, bool from_archive) const {
    if (copy_.keep_owners && keep_times_) return entry;
    if (!from_archive || !copy_.owner.empty()) {
      entry.uid = owner_.first;
      entry.gid = owner_.second;
    }
    if (!from_archive && !keep_times_) entry.mtime = {kFixedTime, 0};
    if (copy_.mode && entry.type != EntryType::Symlink) entry.mode = *copy_.mode;
    return entry;
  }

  void put(const std::string& path, Entry entry, std::size_t source, const std::string& from) {
    entry.path = path;
    const bool folder = entry.type == EntryType::Directory;
    const std::optional<Entry> old = shown(path);
    if (old && (old->type == EntryType::Directory) != folder)
      throw usage_error(folder ? "a directory cannot replace " + quote("/" + path) + ", which is none"
                               : "a file cannot replace the directory " + quote("/" + path));
    slots_[path] = {std::move(entry), source, from};
  }

  static void send_file(int fd, const Entry& entry, TreeSink& sink) {
    std::string piece(1 << 20, '\0');
    for (std::uint64_t at = 0; at < entry.size;) {
      const std::size_t most = std::min<std::uint64_t>(piece.size(), entry.size - at);
      const ssize_t got = ::pread(fd, piece.data(), most, static_cast<off_t>(at));
      if (got < 0) throw system_error("read " + quote(entry.path));
      if (got == 0) throw failure(quote(entry.path) + " ends early");
      sink.data(std::string_view(piece.data(), static_cast<std::size_t>(got)));
      at += static_cast<std::uint64_t>(got);
    }
  }

  // Made by this instruction where nothing was, so that nothing can be in it either.
  static bool is_new(const Slot& slot) { return slot.source == kNone; }

  void unpack(std::size_t index, TreeSink& under) {
    struct Filter final : TreeSink {
      Placement& placement;
      TreeSink& under;
      std::size_t index, next = 0;
      std::string top;
      bool passing = false;
      Filter(Placement& p, TreeSink& u, std::size_t i) : placement(p), under(u), index(i) {}
      void entry(const Entry& entry) override {
        passing = false;
        if (entry.type != EntryType::File && entry.type != EntryType::HardLink) return;
        const std::string plain = joined(top, entry.path);
        const auto moved = placement.moved_.find({index, plain});
        const auto slot = placement.slots_.find(moved == placement.moved_.end() ? plain : moved->second);
        // Two paths of the archive may have come to lie in one place.
        if (slot == placement.slots_.end() || slot->second.source != index || slot->second.from != entry.path) return;
        if (entry.type == EntryType::HardLink) {
          const auto target = placement.slots_.find(slot->second.entry.target);
          if (target == placement.slots_.end() || target->second.source != index)
            throw usage_error("another source replaces " + quote(slot->second.entry.target) + ", to which " +
                              quote(entry.path) + " is a hard link");
        }
        passing = true;
        under.entry(slot->second.entry);
      }
      void data(std::string_view bytes) override {
        if (passing) under.data(bytes);
      }
    } filter(*this, under, index);
    filter.top = into_.resolve(relative(copy_.to));
    selection_.sources_[index].archive->emit(0, filter);
  }

  Selection& selection_;
  CopyOrigin& into_;
  const CopyFiles copy_;
  bool keep_times_;
  std::pair<std::uint32_t, std::uint32_t> owner_;
  std::map<std::string, Slot> slots_;
  std::map<std::string, std::string> folders_;  // of the source that is placed, with links followed
  // Where entries of archives lie whose folder is a link, by index of the source and path without links.
  std::map<std::pair<std::size_t, std::string>, std::string> moved_;
};

std::unique_ptr<Source> Selection::place(CopyOrigin& into, const CopyFiles& copy) {
  open_archives();
  auto placement = std::make_unique<Placement>(*this, into, copy);
  if (placement->nothing()) return nullptr;
  return placement;
}

std::unique_ptr<Source> make_directory_source(CopyOrigin& into, const std::string& path, const std::string& owner) {
  std::map<std::string, Entry> made;
  NewDirectories(into, owner_ids(into, owner)).need(into.resolve(relative(path)), made);
  if (made.empty()) return nullptr;
  return std::make_unique<DirectorySource>(std::move(made));
}

}  // namespace dsec::layers::dockerfile
