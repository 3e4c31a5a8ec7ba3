#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layers/git/libgit.h"

namespace dsec::layers {

/// What a repository on this host consists of, read file by file. Its configuration is not consulted but for the
/// extensions that decide how the rest is to be read: nothing that it names is opened, included or run.
struct RepositoryFiles {
  std::filesystem::path git_dir;     ///< of this work tree
  std::filesystem::path common_dir;  ///< shared by all work trees; often the same
  std::optional<std::filesystem::path> work_tree;
  std::vector<std::filesystem::path> object_dirs;  ///< its own, then the alternates that are there
  std::vector<std::string> missing_alternates;
  std::string head;                             ///< "refs/heads/x", or 40 hex digits
  std::map<std::string, ObjectId> refs;         ///< symbolic ones resolved
  std::map<std::string, std::string> symbolic;  ///< name to name
  std::set<ObjectId> shallow;                   ///< commits whose parents were left out by whoever cloned it
  bool partial = false;                         ///< a partial clone: objects may be missing
  bool reftable = false;                        ///< its refs are not readable here; ids of commits are

  /// `path` is a work tree, a .git file or folder, or a bare repository. Throws Error when it is none, when it uses
  /// sha256, or when a file of it is no regular file (a FIFO would hang its reader).
  static RepositoryFiles read(const std::filesystem::path& path);
};

}  // namespace dsec::layers
