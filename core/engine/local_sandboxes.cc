#include "core/engine/local_sandboxes.h"

#include <algorithm>
#include <thread>

#include "core/engine/lease.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostKnown = 10'000;

bool matches(const SandboxInfo& info, const ListFilter& filter) {
  const bool ended = info.state == SandboxState::Stopped || info.state == SandboxState::Failed;
  if (ended && !filter.all) return false;
  return std::all_of(filter.labels.begin(), filter.labels.end(), [&](const auto& wanted) {
    const auto found = info.spec.labels.find(wanted.first);
    return found != info.spec.labels.end() && (wanted.second.empty() || wanted.second == found->second);
  });
}

}  // namespace

Runner& LocalSandboxes::runner_of(const SandboxSpec& spec) const {
  const auto found = runners_.find(spec.backend);
  if (found != runners_.end()) return found->second;
  Error error = usage_error("backend " + quote(spec.backend) + " is not available");
  for (const auto& [name, runner] : runners_) error.hint("use --backend " + name);
  throw error;
}

SandboxInfo LocalSandboxes::inspect(const std::string& id) const {
  const std::string resolved = records_.resolve(id);
  if (std::optional<SandboxInfo> info = read(resolved)) return *std::move(info);
  throw usage_error("sandbox " + resolved + " is being removed");
}

std::optional<SandboxInfo> LocalSandboxes::read(const std::string& id) const {
  const std::optional<Lease> lease = records_.lease(id);
  if (!lease) return std::nullopt;
  SandboxInfo info = describe(*lease, runner_of(lease->spec).status(directory(id)));
  // Without a state it may be one that is being made, or one that was removed after its lease was read.
  if (info.state == SandboxState::Orphaned && !records_.lease(id)) return std::nullopt;
  return info;
}

std::vector<SandboxInfo> LocalSandboxes::list(const ListFilter& filter) const {
  std::vector<SandboxInfo> found;
  for (const std::string& id : records_.ids()) {
    std::optional<SandboxInfo> info = read(id);
    if (!info || !matches(*info, filter)) continue;
    found.push_back(std::move(*info));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.created > b.created; });
  return found;
}

LocalSandboxes::Known LocalSandboxes::remember(const Lease& lease) {
  const Known sandbox{lease.spec.name, runner_of(lease.spec)};
  const std::lock_guard lock(known_mutex_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_.insert_or_assign(lease.id, sandbox);
  return sandbox;
}

void LocalSandboxes::forget(const std::string& id) {
  const std::lock_guard lock(known_mutex_);
  known_.erase(id);
}

std::optional<LocalSandboxes::Known> LocalSandboxes::known(const std::string& id) {
  {
    const std::lock_guard lock(known_mutex_);
    if (const auto found = known_.find(id); found != known_.end()) return found->second;
  }
  const std::optional<Lease> lease = records_.lease(id);
  if (!lease) return std::nullopt;
  return remember(*lease);
}

FileLock LocalSandboxes::lock_for_change(const std::string& id) const {
  constexpr int kTries = 200;
  for (int tries = 0; tries < kTries; ++tries) {
    if (FileLock lock = FileLock::try_lock(directory(id) / "lock", FileLock::Mode::Exclusive)) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw failure("another process is changing it right now").hint("try again");
}

}  // namespace dsec::engine
