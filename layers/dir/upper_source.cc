#include "layers/dir/upper_source.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/dir/tree_digest.h"
#include "layers/dir/tree_reader.h"

namespace dsec::layers {
namespace {

using Xattrs = std::map<std::string, std::string>;

// The value of an attribute of overlayfs, which has two names: that of mounts with userxattr is the second.
std::optional<std::string> overlay_attribute(const Xattrs& xattrs, const std::string& name) {
  for (const char* prefix : {"trusted.overlay.", "user.overlay."})
    if (const auto found = xattrs.find(prefix + name); found != xattrs.end()) return found->second;
  return std::nullopt;
}

bool is_whiteout(const FoundEntry& found, const Xattrs& xattrs) {
  if (S_ISCHR(found.info.st_mode)) return found.info.st_rdev == 0;
  return S_ISREG(found.info.st_mode) && found.info.st_size == 0 && overlay_attribute(xattrs, "whiteout");
}

std::uint32_t mapped(std::uint32_t id, const std::vector<IdRange>& ranges, const std::string& path) {
  if (ranges.empty()) return id;
  for (const IdRange& range : ranges)
    if (id >= range.outside && id - range.outside < range.count) return range.inside + (id - range.outside);
  throw failure("the owner " + std::to_string(id) + " of " + quote(path) + " is outside of the sandbox's ids");
}

// The type bits of what a lower tree has at `path`, 0 for nothing; never through a symlink.
mode_t type_below(const UniqueFd& lower, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, lower.get(), path.c_str(), &how, sizeof how)));
  struct stat info {};
  if (fd && ::fstat(fd.get(), &info) == 0) return info.st_mode & S_IFMT;
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return 0;
  throw system_error("look up " + quote(path) + " in the lower layers");
}

class UpperSource : public Source {
 public:
  explicit UpperSource(UpperRequest request) : request_(std::move(request)), reader_(request_.upper) {
    if (request_.lower) lower_ = open_file(*request_.lower, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }

  SourceFacts examine(const SourceOptions& options, Progress&) override {
    memory_ = {};
    sockets_ = 0;
    TreeDigest digest;
    LimitCheck limits(options.limits);
    send(
        digest, [&](const FoundEntry& found) { memory_.note(found); }, &limits);
    SourceFacts facts{.identity = request_.identity.value_or(digest.finish())};
    facts.provenance.source = "upper";
    if (!request_.identity) facts.provenance.inputs = {{"tree", facts.identity.str()}};
    facts.provenance.options = {{"scrub", Digest::of(request_.scrub.text()).str()}};
    if (sockets_ > 0) facts.warnings.push_back("left out: sockets, which no layer can hold (" + first_socket_ + ")");
    return facts;
  }

  void emit(std::size_t, TreeSink& sink) override {
    memory_.rewind();
    send(
        sink, [&](const FoundEntry& found) { memory_.expect(found); }, nullptr);
    memory_.expect_end();
  }

 private:
  // A folder that is residue, gone into because something kept by name may lie below: sent only when it does.
  struct Pending {
    std::string prefix;
    Entry entry;
  };

  struct Walk {
    TreeSink& sink;
    LimitCheck* limits;
    HardLinks links;
    std::vector<Pending> pending;
    std::vector<std::string> opaque;  // prefixes of the opaque folders around the present entry
  };

  template <typename Check>
  void send(TreeSink& sink, Check&& check, LimitCheck* limits) {
    Walk walk{sink, limits, {}, {}, {}};
    reader_.walk([&](const FoundEntry& found) {
      check(found);
      const auto left = [&](const std::string& prefix) { return !found.path.starts_with(prefix); };
      while (!walk.pending.empty() && left(walk.pending.back().prefix)) walk.pending.pop_back();
      while (!walk.opaque.empty() && left(walk.opaque.back())) walk.opaque.pop_back();
      return visit(found, walk);
    });
  }

  bool visit(const FoundEntry& found, Walk& walk) {
    const bool folder = S_ISDIR(found.info.st_mode);
    if (S_ISSOCK(found.info.st_mode)) {
      if (sockets_++ == 0) first_socket_ = quote(found.path);
      return false;
    }
    const Xattrs xattrs = reader_.xattrs(found);
    for (const char* name : {"redirect", "metacopy"})
      if (overlay_attribute(xattrs, name))
        throw failure(quote(found.path) + " has the overlay attribute " + quote(name) +
                      ": it is not whole without the layers below")
            .hint("mount the overlay with redirect_dir=nofollow,metacopy=off, as dsec does");
    if (is_whiteout(found, xattrs)) {
      send_whiteout(found, walk);
      return false;
    }
    // Deletions above are never residue: they say how the tree differs from what is below.
    const Scrub::Verdict verdict = request_.scrub.judge(found.path, folder);
    const bool residue =
        verdict == Scrub::Verdict::Residue || (verdict == Scrub::Verdict::Keep && !walk.pending.empty());
    if (residue && (!folder || !request_.scrub.keeps_by_name())) return false;
    Entry entry = make_entry(found, xattrs, residue ? nullptr : &walk.links);
    if (folder && overlay_attribute(xattrs, "opaque") == "y" && walk.opaque.empty() &&
        hides_something(found.path, S_IFDIR)) {
      entry.xattrs["trusted.overlay.opaque"] = "y";
      walk.opaque.push_back(found.path.empty() ? "" : found.path + "/");
    }
    if (residue) {
      walk.pending.push_back({found.path + "/", std::move(entry)});
      return true;
    }
    for (Pending& waiting : walk.pending)
      if (!waiting.entry.path.empty()) give(std::exchange(waiting.entry, {}), walk);
    give(entry, walk);
    const bool examined_only = walk.limits && request_.identity;
    if (entry.type == EntryType::File && entry.size > 0 && !examined_only)
      reader_.content(found, [&](std::string_view bytes) { walk.sink.data(bytes); });
    return true;
  }

  static void give(const Entry& entry, Walk& walk) {
    if (walk.limits) walk.limits->count(entry);
    walk.sink.entry(entry);
  }

  // In an opaque folder nothing below shows anyway, and overlayfs would list the whiteout itself.
  void send_whiteout(const FoundEntry& found, Walk& walk) const {
    if (!walk.opaque.empty() || !walk.pending.empty() || !hides_something(found.path, 0)) return;
    Entry entry;
    entry.path = found.path;
    entry.type = EntryType::CharDevice;
    entry.mtime = {found.info.st_mtim.tv_sec, static_cast<std::uint32_t>(found.info.st_mtim.tv_nsec)};
    give(entry, walk);
  }

  bool hides_something(const std::string& path, mode_t type) const {
    if (!lower_ || path.empty()) return true;
    const mode_t below = type_below(lower_, path);
    return type == 0 ? below != 0 : below == type;
  }

  Entry make_entry(const FoundEntry& found, const Xattrs& xattrs, HardLinks* links) const {
    Entry entry = entry_of(found);
    entry.uid = mapped(found.info.st_uid, request_.ids, found.path);
    entry.gid = mapped(found.info.st_gid, request_.ids, found.path);
    if (links) {
      if (const std::string first = links->first_path(found); !first.empty()) {
        entry.type = EntryType::HardLink;
        entry.target = first;
        entry.size = 0;
        return entry;
      }
    }
    if (entry.type == EntryType::Symlink) entry.target = reader_.link_target(found);
    entry.xattrs = portable_xattrs(xattrs);
    return entry;
  }

  UpperRequest request_;
  TreeReader reader_;
  UniqueFd lower_;
  WalkMemory memory_;
  std::uint64_t sockets_ = 0;
  std::string first_socket_;
};

}  // namespace

std::unique_ptr<Source> open_upper_source(UpperRequest request) {
  return std::make_unique<UpperSource>(std::move(request));
}

}  // namespace dsec::layers
