#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/engine/home.h"
#include "core/engine/lease.h"
#include "core/engine/runner.h"

namespace dsec::engine {

/// The backends of this host by name ("container").
using Runners = std::map<std::string, std::reference_wrapper<Runner>>;

/// The directories below sandboxes/ and the names of sandboxes. A directory appears under its id in one step, with its
/// lease and its locked `lock` in it, so every directory named by an id has a lease until it is being removed.
class SandboxRecords {
 public:
  explicit SandboxRecords(const Home& home) : home_(home) {}

  struct Created {
    std::filesystem::path directory;
    FileLock lock;  ///< held until the sandbox runs
  };
  /// Makes the directory of a new sandbox and takes its name; throws Error (Usage) when the name is taken.
  Created create(const Lease& lease);

  /// Full id, unique prefix of at least 4 characters, or name, as the id; throws Error (Usage) with near names.
  std::string resolve(const std::string& text) const;
  /// Whether a sandbox has this name now.
  bool has_name(const std::string& name) const { return id_of_name(name).has_value(); }
  std::filesystem::path directory(const std::string& id) const { return home_.sandboxes() / id; }
  std::vector<std::string> ids() const;
  std::optional<Lease> lease(const std::string& id) const { return Lease::read(directory(id)); }

  /// Frees the name and removes the directory; everything else of the sandbox must be gone.
  void remove(const std::string& id, const std::string& name);
  /// The same in one step, for the caller to remove what it returns: a directory that no call here finds any more, and
  /// that gc removes once this process is gone.
  std::filesystem::path take_away(const std::string& id, const std::string& name);

 private:
  std::optional<std::string> id_of_name(const std::string& name) const;
  void free_name(const std::string& id, const std::string& name);
  const Home& home_;
};

/// What the record says, completed by whether the processes it names still live.
SandboxInfo describe(const Lease& lease, const RunnerStatus& status);

struct SweptSandbox {
  std::string id, reason;
};
/// Removes every sandbox that nobody can use any more: its keeper or its creator died, or it ended and was to be
/// removed at its end; also directories of creations that never became a sandbox. Only tells when `dry_run`.
std::vector<SweptSandbox> sweep_sandboxes(const Home& home, const Runners& runners, bool dry_run);

/// Gives up what the sandboxes of a home share, if there is none left. The loader of layers has ended by then if
/// nothing is mounted any more, or stays in the group of keepers.
void release_shared(const Home& home, const Runners& runners);

/// The layers (manifest digests) that sandboxes hold: roots of gc, and what must stay mounted.
std::vector<Digest> leased_layers(const Home& home);

}  // namespace dsec::engine
