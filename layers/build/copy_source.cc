#include "layers/build/copy_source.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/dir/dir_source.h"
#include "layers/dir/tree_digest.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

// 1980-01-01: the earliest time that every archive format can hold.
constexpr std::int64_t kFixedTime = 315532800;

// Modes as git keeps them, or as the step wants them.
std::uint32_t even_mode(const Entry& entry, const std::optional<std::uint32_t>& wanted) {
  if (entry.type == EntryType::Symlink) return 0777;
  if (entry.type == EntryType::Directory) return 0755;
  return wanted.value_or(entry.mode & 0111 ? 0755 : 0644);
}

class EvenSink final : public TreeSink {
 public:
  EvenSink(TreeSink& under, std::optional<std::uint32_t> mode) : under_(under), mode_(mode) {}
  void entry(const Entry& entry) override {
    Entry even = entry;
    even.mode = even_mode(entry, mode_);
    even.uid = even.gid = 0;
    even.mtime = {kFixedTime, 0};
    under_.entry(even);
  }
  void data(std::string_view bytes) override { under_.data(bytes); }

 private:
  TreeSink& under_;
  std::optional<std::uint32_t> mode_;
};

// Passes on what lies in a folder, not the folder itself: its own entry would take away the attributes of the place
// that it is copied to.
class ContentOnly final : public TreeSink {
 public:
  explicit ContentOnly(TreeSink& under) : under_(under) {}
  void entry(const Entry& entry) override {
    if (entry.path.empty()) return;
    any_ = true;
    under_.entry(entry);
  }
  void data(std::string_view bytes) override { under_.data(bytes); }
  bool any() const noexcept { return any_; }

 private:
  TreeSink& under_;
  bool any_ = false;
};

class CopyTree final : public Source {
 public:
  CopyTree(const fs::path& folder, std::optional<std::uint32_t> mode)
      : under_(open_dir_source({.folder = folder, .owner = DirOwner::Root, .mtime = kFixedTime})), mode_(mode) {}

  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    SourceFacts facts = under_->examine(options, progress);
    // What decides the result is what arrives, not the modes that this checkout happens to have.
    TreeDigest digest;
    emit(0, digest);
    facts.identity = digest.finish();
    facts.provenance.inputs = {{"tree", facts.identity.str()}};
    return facts;
  }

  void emit(std::size_t image, TreeSink& sink) override {
    EvenSink even(sink, mode_);
    ContentOnly content(even);
    under_->emit(image, content);
    if (!content.any()) even.entry({.path = "", .type = EntryType::Directory});
  }

 private:
  std::unique_ptr<Source> under_;
  std::optional<std::uint32_t> mode_;
};

class CopyFile final : public Source {
 public:
  CopyFile(fs::path file, std::string name, std::optional<std::uint32_t> mode)
      : file_(std::move(file)), name_(std::move(name)), mode_(mode) {}

  SourceFacts examine(const SourceOptions&, Progress&) override {
    fd_ = open_file(file_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    struct stat status;
    if (::fstat(fd_.get(), &status) != 0) throw system_error("stat " + quote(file_.native()));
    size_ = static_cast<std::uint64_t>(status.st_size);
    executable_ = (status.st_mode & 0111) != 0;
    content_ = digest_of_fd(fd_.get());
    SourceFacts facts;
    facts.provenance.source = "copy";
    facts.provenance.inputs["content"] = content_->str();
    facts.identity =
        Digest::of(content_->str() + name_ + (executable_ ? "x" : "-") + (mode_ ? std::to_string(*mode_) : ""));
    return facts;
  }

  void emit(std::size_t, TreeSink& sink) override {
    EvenSink even(sink, mode_);
    even.entry({.path = name_, .type = EntryType::File, .mode = executable_ ? 0755u : 0644u, .size = size_});
    Sha256 hash;
    std::string piece(1 << 20, '\0');
    for (std::uint64_t at = 0; at < size_;) {
      const ssize_t got =
          ::pread(fd_.get(), piece.data(), std::min<std::uint64_t>(piece.size(), size_ - at), static_cast<off_t>(at));
      if (got < 0) throw system_error("read " + quote(file_.native()));
      if (got == 0) break;
      const std::string_view bytes(piece.data(), static_cast<std::size_t>(got));
      hash.update(bytes);
      even.data(bytes);
      at += bytes.size();
    }
    if (hash.finish() != *content_)
      throw failure(quote(file_.native()) + " changed while it was read").hint("build again when nothing writes to it");
  }

 private:
  fs::path file_;
  std::string name_;
  std::optional<std::uint32_t> mode_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  bool executable_ = false;
  std::optional<Digest> content_;
};

}  // namespace

CopyPlan plan_copy(const fs::path& project, const CopyStep& step) {
  const fs::path from = (project / step.from).lexically_normal();
  struct stat status;
  const fs::path named = from.has_filename() ? from : from.parent_path();
  if (::lstat(named.c_str(), &status) != 0) throw system_error("copy " + quote(named.native()));
  // A symlink on the way could lead out of the project.
  std::error_code error;
  const fs::path real = fs::canonical(named, error), root = fs::canonical(project, error);
  const fs::path inside = real.lexically_relative(root);
  if (error || inside.empty() || *inside.begin() == "..")
    throw usage_error(quote(step.from) + " leads out of the project").hint("copy files that lie below dsec.yaml");
  const bool into = step.to.ends_with('/');
  fs::path to = fs::path(step.to).lexically_normal();
  if (!to.has_filename() && to.has_parent_path()) to = to.parent_path();
  if (S_ISDIR(status.st_mode)) return {std::make_unique<CopyTree>(named, step.mode), to.native()};
  if (!S_ISREG(status.st_mode))
    throw usage_error(quote(step.from) + " is neither a file nor a directory").hint("copy what it stands for");
  const fs::path target = into ? to / named.filename() : to;
  return {std::make_unique<CopyFile>(named, target.filename().native(), step.mode), target.parent_path().native()};
}

}  // namespace dsec::layers
