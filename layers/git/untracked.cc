#include "layers/git/untracked.h"

#include <fcntl.h>
#include <git2.h>
#include <sys/stat.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/dir/ignore_rules.h"
#include "layers/dir/tree_reader.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kIgnoreFile = 1 << 20;
// A look at more takes longer than the import.
constexpr std::uint64_t kMostPaths = 1'000'000;

// Git follows no link to a list in the tree. Opened without blocking, so that a FIFO is no list, either.
IgnoreRules read_rules(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) < 0 || !S_ISREG(info.st_mode)) return {};
  return attempt("cannot read " + quote(file.native()),
                 [&] { return IgnoreRules::parse(read_all(fd.get(), kIgnoreFile)); });
}

class Search {
 public:
  Search(fs::path work_tree, const git_index* index, const fs::path& exclude)
      : work_tree_(std::move(work_tree)), exclude_(read_rules(exclude)) {
    for (std::size_t i = 0; i < git_index_entrycount(index); ++i) {
      const std::string path = git_index_get_byindex(const_cast<git_index*>(index), i)->path;
      tracked_.insert(path);
      for (auto slash = path.rfind('/'); slash != std::string::npos && slash > 0; slash = path.rfind('/', slash - 1))
        if (!folders_.insert(path.substr(0, slash)).second) break;
    }
  }

  std::uint64_t run() {
    TreeReader(work_tree_).walk([&](const FoundEntry& found) { return visit(found); });
    return count_;
  }

 private:
  struct Level {
    std::string prefix;  // of the paths in a folder
    IgnoreRules rules;   // of its .gitignore
  };

  // Whether to go into it.
  bool visit(const FoundEntry& found) {
    if (++paths_ > kMostPaths) throw failure("it has more than " + std::to_string(kMostPaths) + " paths");
    if (found.path.empty()) return enter("");
    while (!found.path.starts_with(levels_.back().prefix)) levels_.pop_back();
    if (!untracked_.empty() && !found.path.starts_with(untracked_)) untracked_.clear();
    const bool folder = S_ISDIR(found.info.st_mode);
    if (found.name == ".git" || tracked_.contains(found.path)) return false;
    if (folder && folders_.contains(found.path)) return enter(found.path + "/");
    if (told_ && !untracked_.empty()) return false;
    if (ignored(found.path, folder)) return false;
    if (!folder) {
      if (S_ISREG(found.info.st_mode) || S_ISLNK(found.info.st_mode)) tell();
      return false;
    }
    std::error_code none;
    if (untracked_.empty()) {
      untracked_ = found.path + "/";
      told_ = false;
    }
    // A repository of its own counts as one, whatever is in it.
    if (!fs::exists(fs::symlink_status(work_tree_ / found.path / ".git", none))) return enter(found.path + "/");
    tell();
    return false;
  }

  bool enter(std::string prefix) {
    IgnoreRules rules = read_rules(work_tree_ / prefix / ".gitignore");
    levels_.push_back({std::move(prefix), std::move(rules)});
    return true;
  }

  void tell() {
    told_ = true;
    ++count_;
  }

  bool ignored(const std::string& path, bool folder) const {
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
      if (const auto decided = level->rules.decide(std::string_view(path).substr(level->prefix.size()), folder))
        return *decided;
    return exclude_.ignores(path, folder);
  }

  const fs::path work_tree_;
  const IgnoreRules exclude_;
  std::unordered_set<std::string> tracked_, folders_;  // what the index has, and the folders of that
  std::vector<Level> levels_;
  std::string untracked_;  // prefix of the outermost folder here that has nothing tracked
  bool told_ = false;      // it has been counted
  std::uint64_t paths_ = 0, count_ = 0;
};

}  // namespace

std::uint64_t count_untracked(const fs::path& work_tree, const git_index* index, const fs::path& exclude) {
  return Search(work_tree, index, exclude).run();
}

}  // namespace dsec::layers
