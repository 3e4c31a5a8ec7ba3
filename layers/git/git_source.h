#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "layers/source.h"

namespace dsec::layers {

/// What of a repository goes into a workspace beside the files of the commit.
enum class GitHistory {
  None,  ///< no .git
  Past,  ///< a .git with the commit and what is behind it: no other object, ref, tag, reflog, stash or remote
  Full,  ///< a .git with every ref and what they reach: an explicit wish, since it holds what came after the commit
};

/// "none", "past", "full"; throws Error (Usage) for another.
GitHistory parse_git_history(std::string_view text);
std::string_view to_string(GitHistory history);

struct GitRequest {
  std::string location;           ///< a path of this host, or a URL
  std::string revision = "HEAD";  ///< whatever git calls a revision, but reflogs (@{1}) and upstreams
  GitHistory history = GitHistory::Past;
  std::filesystem::path scratch;  ///< where clones and packs are made for a while; empty: the system's temporary folder

  /// "URL|PATH[@REV][?history=none|past|full]", man/dsec-sources.7.md. Throws Error (Usage).
  /// A relative PATH begins at `base`; empty: the current directory.
  static GitRequest parse(std::string_view text, const std::filesystem::path& base = {});
};

/// The files of a commit, owned by 0:0, modes 0644 and 0755, all with the time of the commit. No program is run: not of
/// the repository (hooks, filters, fsmonitor, transports), nor git itself; and no configuration is consulted, so that
/// the bytes depend on the commit alone. The repository is only read. Throws Error when there is no such repository.
std::unique_ptr<Source> open_git_source(GitRequest request);

}  // namespace dsec::layers
