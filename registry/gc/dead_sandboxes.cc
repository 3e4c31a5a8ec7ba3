#include "registry/gc/dead_sandboxes.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

using engine::Lease;
using engine::Runner;
using engine::SandboxState;

// The lease is the first thing in a sandbox's directory; one without is about to get it, unless its maker was killed
// between the two. Nothing tells who that was, so only time can.
constexpr std::chrono::seconds kOldestWithoutLease{60};

bool is_old(const fs::path& directory) {
  struct stat status;
  if (::stat(directory.c_str(), &status) != 0) return false;
  return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(status.st_mtime) >
         kOldestWithoutLease;
}

bool is_dead(const Lease& lease, Runner& runner, const fs::path& directory) {
  const engine::RunnerStatus status = runner.status(directory);
  switch (status.state) {
    case SandboxState::Orphaned:
      return true;
    case SandboxState::Creating:
      return !lease.creator.alive();
    case SandboxState::Stopped:
    case SandboxState::Failed:
      return lease.spec.remove_at_end && !lease.creator.alive();
    case SandboxState::Running:
    case SandboxState::Paused:
      return false;
  }
  return false;
}

// Renamed first: a crash in the middle leaves a temporary directory, which the next gc knows, and never half a sandbox.
void remove_directory(const fs::path& directory) {
  const TempDirectory grave(directory.parent_path());
  if (::rename(directory.c_str(), grave.path().c_str()) != 0) throw system_error("rename " + quote(directory.native()));
  remove_tree(grave.path());
}

// True when the sandbox was dead, and (unless `dry_run`) is removed now.
bool reclaim(const fs::path& directory, const std::function<Runner*(const std::string&)>& runner_of, bool dry_run) {
  const auto lock = FileLock::try_lock(directory / "lock", FileLock::Mode::Exclusive);
  if (!lock) return false;  // somebody is changing its state just now
  const std::optional<Lease> lease = Lease::read(directory);
  if (!lease) {
    if (!is_old(directory)) return false;
    if (!dry_run) remove_directory(directory);
    return true;
  }
  Runner* const runner = runner_of(lease->spec.backend);
  if (!runner) throw failure("this dsec has no backend " + quote(lease->spec.backend));
  if (!is_dead(*lease, *runner, directory)) return false;
  if (dry_run) return true;
  runner->reclaim(directory);
  remove_directory(directory);
  return true;
}

}  // namespace

std::vector<std::string> reclaim_dead_sandboxes(const engine::Home& home,
                                                const std::function<Runner*(const std::string& backend)>& runner,
                                                bool dry_run, std::vector<std::string>& warnings) {
  std::vector<std::string> ids, removed;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(home.sandboxes(), missing))
    if (engine::is_sandbox_id(entry.path().filename().native())) ids.push_back(entry.path().filename());
  std::sort(ids.begin(), ids.end());
  for (const std::string& id : ids) {
    try {
      if (reclaim(home.sandboxes() / id, runner, dry_run)) removed.push_back(id);
    } catch (const Error& error) {
      warnings.push_back("sandbox " + id + " is left: " + error.message());
    }
  }
  return removed;
}

}  // namespace dsec::registry
