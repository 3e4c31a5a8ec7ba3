#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "layers/git/git_objects.h"

namespace dsec::layers {

/// Commits and what else must be in a repository for its refs to be whole.
struct GitHistoryFacts {
  std::uint64_t commits = 0;
  std::set<ObjectId> boundary;  ///< commits that a shallow clone has without their parents
};

/// The commits that `commit` has behind it.
GitHistoryFacts look_at_history(const GitObjects& objects, const ObjectId& commit, const std::set<ObjectId>& shallow);

/// A pack file and its index on disk.
struct GitPack {
  std::filesystem::path pack, index;
  std::set<ObjectId> boundary;  ///< the commits in it that are without their parents
};

/// Writes everything that can be reached from `roots` (commits, tags, trees or blobs) and nothing else into one new
/// pack below `folder`. The same objects give the same bytes with one version of libgit2 and zlib: the order is that of
/// the history, and one thread looks for deltas. Throws Error naming an object that is missing.
GitPack write_pack(const GitObjects& objects, const std::vector<ObjectId>& roots, const std::set<ObjectId>& shallow,
                   const std::filesystem::path& folder);

}  // namespace dsec::layers
