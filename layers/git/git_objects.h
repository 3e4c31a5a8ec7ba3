#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"
#include "layers/git/libgit.h"
#include "layers/git/repository_files.h"

namespace dsec::layers {

/// One object in memory, as it is stored.
class GitBlob {
 public:
  explicit GitBlob(GitPtr<git_odb_object> object) : object_(std::move(object)) {}
  std::string_view bytes() const;

 private:
  GitPtr<git_odb_object> object_;
};

/// What dsec needs of a commit. Read by hand: a commit with a broken author line is still a commit to git.
struct GitCommit {
  ObjectId tree;
  std::vector<ObjectId> parents;
  std::int64_t time = 0;  ///< of the committer, seconds since 1970
};

struct GitTreeItem {
  std::string name;
  std::uint32_t mode = 0;  ///< as it is stored: 0100664 stays what it is
  ObjectId id;
};

/// The objects of a repository, read through a repository of our own that borrows them: it has our configuration, and
/// the refs of the source as they were when it was opened. Every object is hashed when it is read.
class GitObjects {
 public:
  /// Makes a folder below `scratch` that lives as long as the object.
  GitObjects(const RepositoryFiles& files, const std::filesystem::path& scratch);

  /// Whatever git calls a revision, apart from what needs reflogs or configuration (@{1}, @{upstream}). Throws Error.
  ObjectId commit_of(const std::string& revision) const;

  bool has(const ObjectId& id) const;
  /// "commit", "tree", "blob" or "tag"; throws Error when it is missing.
  std::string_view kind(const ObjectId& id) const;
  std::uint64_t size(const ObjectId& id) const;
  GitBlob blob(const ObjectId& id) const;
  GitCommit commit(const ObjectId& id) const;
  std::vector<GitTreeItem> tree(const ObjectId& id) const;
  /// What a tag object points at.
  ObjectId tag_target(const ObjectId& id) const;
  /// The id that `bytes` have as a blob.
  static ObjectId hash_blob(std::string_view bytes);

  git_repository* repository() const { return repository_.get(); }
  const std::filesystem::path& scratch() const { return folder_.path(); }

 private:
  GitPtr<git_odb_object> read(const ObjectId& id, int type, const char* what) const;
  Error missing(const ObjectId& id, const std::string& what) const;

  TempDirectory folder_;
  GitPtr<git_repository> repository_;
  GitPtr<git_odb> objects_;
  std::string absence_;  // why an object may be missing; may be empty
  std::string remedy_;
};

}  // namespace dsec::layers
