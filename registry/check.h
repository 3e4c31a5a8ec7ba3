#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/progress.h"
#include "registry/registry_url.h"

namespace dsec::registry {

struct RegistryProblem {
  enum class Kind {
    Missing,
    Truncated,
    Altered,
    Unreferenced,
    DanglingTag,
    DamagedTag,
    DamagedManifest,
    Leftover,
    Catalogue
  };
  Kind kind;
  std::string path;  ///< of the file, relative to the registry; in an OCI registry of what would be it
  std::string what;  ///< one line: "has 12 bytes instead of 4096"
  bool repaired = false;
};
/// "missing", "truncated", "altered", "unreferenced", "dangling-tag", "damaged-tag", "damaged-manifest", "leftover",
/// "catalogue".
std::string_view to_string(RegistryProblem::Kind kind);

struct CheckOptions {
  bool content = true;  ///< hash every blob; else only names, sizes and references
  /// Removes leftovers of dead publishers, unreferenced and damaged files and tags that lead nowhere, so that
  /// publishing again mends the rest.
  bool repair = false;
  /// How long repair waits on 3FS before it removes what it has set aside: as long as clients remember a name.
  std::chrono::seconds three_fs_wait{31};
  /// Layers that have to be there, and what names them: "dsec.lock".
  std::map<Digest, std::string> pinned = {};
};

struct CheckResult {
  std::uint64_t tags = 0, layers = 0, blobs = 0, bytes = 0;  ///< looked at
  std::vector<RegistryProblem> problems;
  std::string left_out;  ///< what was not looked at, and why; one line
};

/// Publishers may work meanwhile: what they have not finished is no problem. Throws Error (Usage) for repairs where
/// they cannot be made.
CheckResult check_registry(const RegistryAddress& address, const CheckOptions& options, Progress& progress);

}  // namespace dsec::registry
