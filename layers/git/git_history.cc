#include "layers/git/git_history.h"

#include <git2.h>
#include <git2/sys/repository.h>

#include <queue>
#include <unordered_set>

#include "layers/git/tree_walk.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

using Seen = std::unordered_set<ObjectId, ObjectIdHash>;

// Visits commits newest first, by time and then by id: an order that only the commits decide. A commit-graph file is
// not asked, since it could tell of other parents than the commits do.
template <typename Visit>
void each_commit(const GitObjects& objects, const std::vector<ObjectId>& starts, const std::set<ObjectId>& shallow,
                 Visit&& visit) {
  struct Waiting {
    std::int64_t time;
    ObjectId id;
    bool operator<(const Waiting& other) const { return time != other.time ? time < other.time : id < other.id; }
  };
  std::priority_queue<Waiting> waiting;
  Seen seen;
  const auto enter = [&](const ObjectId& id) {
    if (seen.insert(id).second) waiting.push({objects.commit(id).time, id});
  };
  for (const ObjectId& start : starts) enter(start);
  while (!waiting.empty()) {
    const ObjectId id = waiting.top().id;
    waiting.pop();
    const GitCommit commit = objects.commit(id);
    visit(id, commit);
    if (shallow.contains(id)) continue;
    for (const ObjectId& parent : commit.parents) enter(parent);
  }
}

// Puts objects into the pack in a fixed order, each once.
class Packer {
 public:
  explicit Packer(const GitObjects& objects) : objects_(objects) {
    // The builder orders objects by the refs of its repository: one without refs keeps those of the source out of it.
    const std::string place = (objects.scratch() / "pack-order").native();
    std::error_code ignored;
    git_repository* repository = nullptr;
    check_git(git_repository_init(&repository, place.c_str(), 1), "make a repository in " + quote(place));
    repository_.reset(repository);
    git_odb* source = nullptr;
    check_git(git_repository_odb(&source, objects.repository()), "open the objects");
    const GitPtr<git_odb> owned(source);
    check_git(git_repository_set_odb(repository, source), "lend the objects to a repository");
    git_packbuilder* builder = nullptr;
    check_git(git_packbuilder_new(&builder, repository), "begin a pack");
    builder_.reset(builder);
    git_packbuilder_set_threads(builder, 1);  // more of them would cut the search for deltas at other places
  }

  void add(const ObjectId& id, const std::string& path) {
    if (!seen_.insert(id).second) return;
    const git_oid native = id.native();
    if (git_packbuilder_insert(builder_.get(), &native, path.c_str()) < 0) {
      objects_.kind(id);  // tells more about a missing object
      throw libgit_error("add the object " + id.hex() + " to a pack");
    }
  }

  void add_tree(const ObjectId& id, const std::string& path, int depth) {
    if (seen_.contains(id)) return;
    if (depth > kDepthLimit) throw failure("the history has a tree that nests folders more than 2048 deep");
    add(id, path);
    for (const GitTreeItem& item : objects_.tree(id)) {
      const std::uint32_t type = item.mode & 0170000;
      if (type == 0160000) continue;  // the commit of a submodule lies in another repository
      if (type == 0040000) {
        add_tree(item.id, item.name, depth + 1);
      } else if (!seen_.contains(item.id)) {
        refuse_oversized(item.name, objects_.size(item.id));
        add(item.id, item.name);
      }
    }
  }

  GitPack write(const fs::path& folder) {
    check_git(git_packbuilder_write(builder_.get(), folder.c_str(), 0444, nullptr, nullptr),
              "write a pack in " + quote(folder.native()));
    GitPack pack;
    for (const auto& file : fs::directory_iterator(folder)) {
      if (file.path().extension() == ".pack") pack.pack = file.path();
      if (file.path().extension() == ".idx") pack.index = file.path();
    }
    if (pack.pack.empty() || pack.index.empty()) throw Error(ErrorKind::Internal, "libgit2 wrote no pack");
    return pack;
  }

 private:
  static constexpr int kDepthLimit = 2048;
  const GitObjects& objects_;
  GitPtr<git_repository> repository_;
  GitPtr<git_packbuilder> builder_;
  Seen seen_;
};

}  // namespace

GitHistoryFacts look_at_history(const GitObjects& objects, const ObjectId& commit, const std::set<ObjectId>& shallow) {
  GitHistoryFacts facts;
  each_commit(objects, {commit}, shallow, [&](const ObjectId& id, const GitCommit&) {
    ++facts.commits;
    if (shallow.contains(id)) facts.boundary.insert(id);
  });
  return facts;
}

GitPack write_pack(const GitObjects& objects, const std::vector<ObjectId>& roots, const std::set<ObjectId>& shallow,
                   const fs::path& folder) {
  make_directories(folder, 0700);
  Packer packer(objects);
  std::vector<ObjectId> commits, trees;
  for (ObjectId id : roots) {
    std::string_view kind = objects.kind(id);
    for (; kind == "tag"; kind = objects.kind(id)) {
      packer.add(id, "");
      id = objects.tag_target(id);
    }
    if (kind == "commit") commits.push_back(id);
    if (kind == "tree") trees.push_back(id);
    if (kind == "blob") packer.add(id, "");
  }
  std::set<ObjectId> boundary;
  each_commit(objects, commits, shallow, [&](const ObjectId& id, const GitCommit& commit) {
    packer.add(id, "");
    trees.push_back(commit.tree);
    if (shallow.contains(id)) boundary.insert(id);
  });
  for (const ObjectId& tree : trees) packer.add_tree(tree, "", 0);
  GitPack pack = packer.write(folder);
  pack.boundary = std::move(boundary);
  return pack;
}

}  // namespace dsec::layers
