#include "layers/git/git_source.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <optional>

#include "layers/archive/refusal.h"
#include "layers/git/checkout_filter.h"
#include "layers/git/git_history.h"
#include "layers/git/git_index.h"
#include "layers/git/git_objects.h"
#include "layers/git/lfs_pointers.h"
#include "layers/git/remote.h"
#include "layers/git/tree_walk.h"
#include "layers/git/work_tree.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

// Only what git init writes: nothing here names a program or another place.
constexpr std::string_view kConfig =
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n";
// The branch that a workspace is on, whatever branches the source has: a name could tell of the future as well.
constexpr std::string_view kBranch = "refs/heads/main";
// From here on one thread looks for deltas for longer than people wait without a word (82,000 commits: 4 minutes).
constexpr std::uint64_t kManyCommits = 20'000;

std::string plural(std::uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string line(const std::string& name, const std::string& value) { return name + " " + value + "\n"; }

// Sends entries that all belong to 0:0 and have one time, with the folders that they need.
class Writer {
 public:
  Writer(TreeSink& sink, std::int64_t time) : sink_(sink), time_(time) { entry("", EntryType::Directory, 0755); }

  void folder(const std::string& path) {
    parents_of(path);
    enter(path);
  }
  void file(const std::string& path, std::string_view bytes, std::uint32_t mode = 0644) {
    parents_of(path);
    Entry head = make(path, EntryType::File, mode);
    head.size = bytes.size();
    sink_.entry(head);
    if (!bytes.empty()) sink_.data(bytes);
  }
  void symlink(const std::string& path, std::string_view target) {
    parents_of(path);
    Entry head = make(path, EntryType::Symlink, 0777);
    head.target = target;
    sink_.entry(head);
  }
  void file_from(const std::string& path, const fs::path& source, std::uint32_t mode) {
    parents_of(path);
    Entry head = make(path, EntryType::File, mode);
    head.size = fs::file_size(source);
    sink_.entry(head);
    const UniqueFd fd = open_file(source, O_RDONLY | O_CLOEXEC);
    std::string buffer(1 << 20, '\0');
    for (std::uint64_t left = head.size; left > 0;) {
      const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
      if (got <= 0) throw system_error("read " + quote(source.native()));
      sink_.data({buffer.data(), static_cast<std::size_t>(got)});
      left -= static_cast<std::uint64_t>(got);
    }
  }

 private:
  Entry make(const std::string& path, EntryType type, std::uint32_t mode) const {
    Entry head;
    head.path = path;
    head.type = type;
    head.mode = mode;
    head.mtime = {time_, 0};
    return head;
  }
  void entry(const std::string& path, EntryType type, std::uint32_t mode) { sink_.entry(make(path, type, mode)); }
  void enter(const std::string& path) {
    entry(path, EntryType::Directory, 0755);
    open_.push_back(path + "/");
  }
  // Files of one folder come together, so the folders of the last path are all that must be remembered.
  void parents_of(const std::string& path) {
    while (!open_.empty() && !path.starts_with(open_.back())) open_.pop_back();
    for (auto slash = path.find('/', open_.empty() ? 0 : open_.back().size()); slash != std::string::npos;
         slash = path.find('/', slash + 1))
      enter(path.substr(0, slash));
  }

  TreeSink& sink_;
  std::int64_t time_;
  std::vector<std::string> open_;
};

class GitSource : public Source {
 public:
  explicit GitSource(GitRequest request) : request_(std::move(request)) {
    if (request_.scratch.empty()) request_.scratch = fs::temp_directory_path();
  }

  SourceFacts examine(const SourceOptions& options, Progress& progress) override;
  void emit(std::size_t image, TreeSink& sink) override;

 private:
  void open(Progress& progress);
  void add_warnings(SourceFacts& facts) const;
  Digest digest_of_refs() const;
  std::string head_text() const;
  void emit_files(Writer& writer, std::vector<GitIndexEntry>& index) const;
  void emit_repository(Writer& writer, std::vector<GitIndexEntry> index) const;

  GitRequest request_;
  std::optional<TempDirectory> clone_;
  RepositoryFiles files_;
  std::unique_ptr<GitObjects> objects_;
  ObjectId commit_id_;
  GitCommit commit_;
  std::unique_ptr<GitTree> tree_;
  std::set<ObjectId> boundary_;
  std::uint64_t commits_ = 0;  // behind and with the commit; counted for history past
};

void GitSource::open(Progress& progress) {
  fs::path place = request_.location;
  if (is_remote(request_.location)) {
    clone_.emplace(request_.scratch);
    place = clone_->path() / "clone";
    fetch_repository(request_.location, request_.revision, request_.history == GitHistory::Full, place, progress);
  } else {
    place = local_path(request_.location);  // a caller may give a file: URL as well
  }
  files_ = RepositoryFiles::read(place);
  objects_ = std::make_unique<GitObjects>(files_, request_.scratch);
}

Digest GitSource::digest_of_refs() const {
  std::string text = head_text();
  for (const auto& [name, id] : files_.refs) text += id.hex() + " " + name + "\n";
  return Digest::of(text);
}

void GitSource::add_warnings(SourceFacts& facts) const {
  if (files_.reftable && request_.history == GitHistory::Full)
    throw failure("the repository keeps its refs in reftable form, which dsec does not read")
        .hint("git refs migrate --ref-format=files in it, or history past with the id of a commit");
  if (!boundary_.empty())
    facts.warnings.push_back("the repository is a shallow clone: the workspace's history ends at " +
                             plural(boundary_.size(), "commit") +
                             " without parents (git fetch --unshallow makes it whole)");
  if (commits_ > kManyCommits)
    facts.warnings.push_back("packing the history of " + plural(commits_, "commit") +
                             " anew takes minutes (history none leaves it out)");
  if (!clone_ && files_.work_tree) {
    const WorkTreeState state = look_at_work_tree(files_, *objects_);
    if (!state.unknown.empty()) {
      facts.warnings.push_back("whether the work tree has changes is not known: " + state.unknown);
    } else if (state.dirty()) {
      facts.warnings.push_back("the work tree has changes that the layer will not have: " + state.summary());
    }
  }
  if (std::string warning = lfs_warning(*objects_, *tree_); !warning.empty())
    facts.warnings.push_back(std::move(warning));
  std::uint64_t submodules = 0;
  std::string first;
  tree_->walk([&](const GitFile& file) {
    if (file.kind == GitFileKind::Submodule && submodules++ == 0) first = file.path;
  });
  if (submodules > 0)
    facts.warnings.push_back(plural(submodules, "submodule") + " (" + quote(first) +
                             (submodules > 1 ? " and others" : "") +
                             ") left as empty folders: import each as a layer or a git step of its own");
}

SourceFacts GitSource::examine(const SourceOptions& options, Progress& progress) {
  open(progress);
  commit_id_ = objects_->commit_of(request_.revision);
  commit_ = objects_->commit(commit_id_);
  tree_ = std::make_unique<GitTree>(*objects_, commit_.tree, options.limits);
  if (request_.history != GitHistory::None) boundary_ = look_at_history(*objects_, commit_id_, files_.shallow).boundary;

  SourceFacts facts{.identity = Digest::of("")};
  facts.provenance.source = "git";
  facts.provenance.inputs = {{"commit", commit_id_.hex()}, {"tree", commit_.tree.hex()}};
  facts.provenance.options = {{"history", std::string(to_string(request_.history))}};
  if (request_.history == GitHistory::Full) facts.provenance.inputs["refs"] = digest_of_refs().str();
  if (!boundary_.empty()) {
    std::string text;
    for (const ObjectId& id : boundary_) text += id.hex() + "\n";
    facts.provenance.inputs["shallow"] = Digest::of(text).str();
  }
  std::string identity = "git\n";
  for (const auto& [name, value] : facts.provenance.inputs) identity += line(name, value);
  for (const auto& [name, value] : facts.provenance.options) identity += line(name, value);
  facts.identity = Digest::of(identity);
  add_warnings(facts);
  return facts;
}

void GitSource::emit(std::size_t, TreeSink& sink) {
  Writer writer(sink, commit_.time);
  std::vector<GitIndexEntry> index;
  emit_files(writer, index);
  if (request_.history != GitHistory::None) emit_repository(writer, std::move(index));
}

void GitSource::emit_files(Writer& writer, std::vector<GitIndexEntry>& index) const {
  const CheckoutFilter filter(*objects_, *tree_);
  tree_->walk([&](const GitFile& file) {
    std::uint64_t size = 0;
    if (file.kind == GitFileKind::Submodule) {
      writer.folder(file.path);
    } else {
      const GitBlob blob = attempt("cannot read " + quote(file.path), [&] { return objects_->blob(file.id); });
      std::string buffer;
      if (file.kind == GitFileKind::Symlink) {
        const std::string_view target = blob.bytes();
        if (target.empty() || target.find('\0') != std::string_view::npos)
          throw refusal(Refusal::NotRepresentable,
                        "the symlink " + quote(file.path) + " has a target that no symlink can have");
        writer.symlink(file.path, target);
        size = target.size();
      } else {
        const std::string_view bytes = filter.apply(file.path, blob.bytes(), buffer);
        writer.file(file.path, bytes, file.kind == GitFileKind::Executable ? 0755 : 0644);
        size = bytes.size();
      }
    }
    index.push_back({file.path, file.index_mode(), file.id, size});
  });
}

// Past: always the one branch. Full: the branch that was asked for, or that HEAD names, when it is at the commit.
std::string GitSource::head_text() const {
  if (request_.history == GitHistory::Past) return "ref: " + std::string(kBranch) + "\n";
  for (const std::string& name :
       {request_.revision == "HEAD" ? files_.head : "refs/heads/" + request_.revision, request_.revision}) {
    const auto found = files_.refs.find(name);
    if (name.starts_with("refs/heads/") && found != files_.refs.end() && found->second == commit_id_)
      return "ref: " + name + "\n";
  }
  return commit_id_.hex() + "\n";
}

void GitSource::emit_repository(Writer& writer, std::vector<GitIndexEntry> index) const {
  std::vector<ObjectId> roots{commit_id_};
  std::string packed_refs;
  if (request_.history == GitHistory::Full) {
    packed_refs = "# pack-refs with: peeled fully-peeled sorted \n";
    for (const auto& [name, id] : files_.refs) {
      if (!objects_->has(id))
        throw failure("the ref " + quote(name) + " names the object " + id.hex() + ", which is missing")
            .hint("git fsck in the repository, or history past, which needs no other ref");
      roots.push_back(id);
      packed_refs += id.hex() + " " + name + "\n";
      ObjectId peeled = id;
      while (objects_->kind(peeled) == "tag") peeled = objects_->tag_target(peeled);
      if (peeled != id) packed_refs += "^" + peeled.hex() + "\n";
    }
  }
  TempDirectory folder(request_.scratch);
  const GitPack pack = attempt("cannot pack the history of " + commit_id_.hex(),
                               [&] { return write_pack(*objects_, roots, files_.shallow, folder.path()); });

  writer.folder(".git");
  writer.file(".git/HEAD", head_text());
  writer.file(".git/config", kConfig);
  writer.file(".git/index", git_index_bytes(std::move(index), commit_.time));
  writer.folder(".git/objects");
  writer.folder(".git/objects/info");
  writer.folder(".git/objects/pack");
  writer.file_from(".git/objects/pack/" + pack.index.filename().native(), pack.index, 0444);
  writer.file_from(".git/objects/pack/" + pack.pack.filename().native(), pack.pack, 0444);
  if (!packed_refs.empty()) writer.file(".git/packed-refs", packed_refs);
  writer.folder(".git/refs");
  writer.folder(".git/refs/heads");
  if (request_.history == GitHistory::Past) writer.file(".git/" + std::string(kBranch), commit_id_.hex() + "\n");
  writer.folder(".git/refs/tags");
  if (pack.boundary.empty()) return;
  std::string text;
  for (const ObjectId& id : pack.boundary) text += id.hex() + "\n";
  writer.file(".git/shallow", text);
}

}  // namespace

std::unique_ptr<Source> open_git_source(GitRequest request) { return std::make_unique<GitSource>(std::move(request)); }

}  // namespace dsec::layers
