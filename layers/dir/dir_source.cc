#include "layers/dir/dir_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/refusal.h"
#include "layers/dir/ignore_rules.h"
#include "layers/dir/tree_digest.h"
#include "layers/dir/tree_reader.h"

namespace dsec::layers {
namespace {

constexpr std::string_view kIgnoreFile = ".dsecignore";

IgnoreRules read_ignore_file(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kIgnoreFile;
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd && errno == ENOENT) return {};
  if (!fd) throw system_error("open " + quote(file.native()));
  struct stat info {};
  if (::fstat(fd.get(), &info) < 0) throw system_error("stat " + quote(file.native()));
  if (!S_ISREG(info.st_mode)) throw failure(quote(file.native()) + " is no regular file");
  return attempt("cannot read " + quote(file.native()),
                 [&] { return IgnoreRules::parse(read_all(fd.get(), 1 << 20)); });
}

class DirSource : public Source {
 public:
  explicit DirSource(DirRequest request) : request_(std::move(request)), reader_(request_.folder) {
    if (request_.owner == DirOwner::Auto) request_.owner = ::geteuid() == 0 ? DirOwner::Keep : DirOwner::Root;
  }

  SourceFacts examine(const SourceOptions& options, Progress&) override {
    ignored_ = read_ignore_file(request_.folder);
    memory_ = {};
    sockets_ = other_filesystems_ = 0;
    TreeDigest digest;
    LimitCheck limits(options.limits);
    send(digest, [&](const FoundEntry& found, const Entry& entry) {
      memory_.note(found);
      limits.count(entry);
    });
    SourceFacts facts{.identity = digest.finish()};
    facts.provenance.source = "dir";
    facts.provenance.inputs = {{"tree", facts.identity.str()}};
    if (request_.owner == DirOwner::Root) facts.provenance.options["owner"] = "root";
    if (request_.mtime) facts.provenance.options["mtime"] = std::to_string(*request_.mtime);
    if (sockets_ > 0) facts.warnings.push_back("left out: sockets, which no layer can hold (" + first_socket_ + ")");
    if (other_filesystems_ > 0)
      facts.warnings.push_back("left empty: folders on another filesystem (" + first_other_ + ")");
    return facts;
  }

  void emit(std::size_t, TreeSink& sink) override {
    memory_.rewind();
    send(sink, [&](const FoundEntry& found, const Entry&) { memory_.expect(found); });
    memory_.expect_end();
  }

 private:
  template <typename Check>
  void send(TreeSink& sink, Check&& check) {
    HardLinks links;
    std::optional<dev_t> device;
    reader_.walk([&](const FoundEntry& found) {
      if (!device) device = found.info.st_dev;
      const bool folder = S_ISDIR(found.info.st_mode);
      if (!found.path.empty() && (found.path == kIgnoreFile || ignored_.ignores(found.path, folder))) return false;
      if (S_ISSOCK(found.info.st_mode)) {
        if (sockets_++ == 0) first_socket_ = quote(found.path);
        return false;
      }
      const Entry entry = make_entry(found, links);
      check(found, entry);
      sink.entry(entry);
      if (entry.type == EntryType::File && entry.size > 0)
        reader_.content(found, [&](std::string_view bytes) { sink.data(bytes); });
      if (found.info.st_dev == *device) return true;
      if (other_filesystems_++ == 0) first_other_ = quote(found.path);
      return false;
    });
  }

  Entry make_entry(const FoundEntry& found, HardLinks& links) const {
    Entry entry = entry_of(found);
    if (entry.type == EntryType::CharDevice && entry.major == 0 && entry.minor == 0)
      throw refusal(Refusal::NotRepresentable,
                    "the device " + quote(found.path) + " has the numbers 0:0, which mean a deletion in a layer")
          .hint("leave it out by a line in .dsecignore");
    if (request_.owner == DirOwner::Root) entry.uid = entry.gid = 0;
    if (request_.mtime) entry.mtime = {*request_.mtime, 0};
    if (const std::string first = links.first_path(found); !first.empty()) {
      entry.type = EntryType::HardLink;
      entry.target = first;
      entry.size = 0;
      return entry;
    }
    if (entry.type == EntryType::Symlink) entry.target = reader_.link_target(found);
    entry.xattrs = portable_xattrs(reader_.xattrs(found));
    return entry;
  }

  DirRequest request_;
  TreeReader reader_;
  IgnoreRules ignored_;
  WalkMemory memory_;
  std::uint64_t sockets_ = 0, other_filesystems_ = 0;
  std::string first_socket_, first_other_;
};

void take_option(std::string_view option, DirRequest& request) {
  if (option == "owner=keep") {
    request.owner = DirOwner::Keep;
  } else if (option == "owner=root") {
    request.owner = DirOwner::Root;
  } else if (option.starts_with("mtime=")) {
    std::int64_t seconds = 0;
    const auto [end, fault] = std::from_chars(option.data() + 6, option.data() + option.size(), seconds);
    if (fault != std::errc() || end != option.data() + option.size())
      throw usage_error("mtime is a number of seconds since 1970, not " + quote(option.substr(6)));
    request.mtime = seconds;
  } else {
    throw usage_error("the source dir: has no option " + quote(option))
        .hint("?owner=keep, ?owner=root or ?mtime=SECONDS");
  }
}

}  // namespace

DirRequest DirRequest::parse(std::string_view text, const std::filesystem::path& base) {
  DirRequest request;
  std::error_code ignored;
  const auto mark = text.rfind('?');
  const bool options = mark != std::string_view::npos && text.find('=', mark) != std::string_view::npos;
  if (options && !std::filesystem::exists(base / text, ignored)) {
    for (std::string_view rest = text.substr(mark + 1); !rest.empty();) {
      const std::string_view option = rest.substr(0, rest.find('&'));
      rest.remove_prefix(std::min(option.size() + 1, rest.size()));
      take_option(option, request);
    }
    text = text.substr(0, mark);
  }
  if (text.empty()) throw usage_error("the source dir: names no folder").hint("dir:PATH");
  request.folder = base / text;
  return request;
}

std::unique_ptr<Source> open_dir_source(DirRequest request) { return std::make_unique<DirSource>(std::move(request)); }

}  // namespace dsec::layers
