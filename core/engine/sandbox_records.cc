#include "core/engine/sandbox_records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.h"
#include "core/engine/birthplaces.h"
#include "core/engine/creation_keys.h"
#include "core/engine/memory_snapshots.h"
#include "core/engine/sandbox_id.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kShortestPrefix = 4;
constexpr std::string_view kUnfinished = ".tmp-";

std::vector<std::string> entries(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().native());
  if (error && error != std::errc::no_such_file_or_directory)
    throw system_error("list " + quote(directory.native()), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

/// Of a directory that is being made or removed. Tells by whom without its lease, which is not there all the time.
std::string unfinished_name(const ProcessIdentity& by, const std::string& id) {
  return std::string(kUnfinished) + std::to_string(by.pid) + "-" + std::to_string(by.start_ticks) + "-" + id;
}

bool is_being_made(const Home& home, const std::string& id) {
  const std::vector<std::string> names = entries(home.sandboxes());
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(kUnfinished) && name.ends_with("-" + id) && !temp_file_is_stale(name);
  });
}

}  // namespace

SandboxRecords::Created SandboxRecords::create(const Lease& lease) {
  const fs::path target = directory(lease.id);
  const fs::path unfinished = home_.sandboxes() / unfinished_name(lease.creator, lease.id);
  make_spread_directory(home_, unfinished, lease.id);
  try {
    lease.write(unfinished);
    FileLock lock(unfinished / "lock", FileLock::Mode::Exclusive);
    if (!lease.spec.name.empty()) {
      const fs::path link = home_.names() / lease.spec.name;
      // A crash may leave a name whose sandbox is gone: such a link is replaced.
      if (const auto holder = id_of_name(lease.spec.name); !holder) ::unlink(link.c_str());
      if (::symlink(lease.id.c_str(), link.c_str()) != 0) {
        if (errno != EEXIST) throw system_error("take the name " + quote(lease.spec.name));
        throw usage_error("the name " + quote(lease.spec.name) + " is taken by sandbox " +
                          id_of_name(lease.spec.name).value_or("(gone)"))
            .hint("dsec rm " + lease.spec.name + ", or choose another name");
      }
    }
    if (::rename(unfinished.c_str(), target.c_str()) != 0) throw system_error("rename " + quote(unfinished.native()));
    return {target, std::move(lock)};
  } catch (...) {
    remove_tree(unfinished);
    throw;
  }
}

std::optional<std::string> SandboxRecords::id_of_name(const std::string& name) const {
  std::error_code error;
  const fs::path id = fs::read_symlink(home_.names() / name, error);
  if (error || !is_sandbox_id(id.native())) return std::nullopt;
  // While a sandbox is being made its name is taken before its directory has its final name.
  if (!fs::exists(directory(id.native())) && !is_being_made(home_, id.native())) return std::nullopt;
  return id.native();
}

std::vector<std::string> SandboxRecords::ids() const {
  std::vector<std::string> found = entries(home_.sandboxes());
  std::erase_if(found, [](const std::string& name) { return !is_sandbox_id(name); });
  return found;
}

std::string SandboxRecords::resolve(const std::string& text) const {
  if (is_sandbox_id(text) && fs::exists(directory(text))) return text;
  if (!text.empty() && text.find('/') == std::string::npos)
    if (const auto id = id_of_name(text)) return *id;
  std::vector<std::string> candidates = entries(home_.names());
  if (text.size() >= kShortestPrefix && is_id_text(text)) {
    std::vector<std::string> matching = ids();
    std::erase_if(matching, [&](const std::string& id) { return !id.starts_with(text); });
    if (matching.size() == 1) return matching.front();
    if (matching.size() > 1) {
      Error error = usage_error("several sandboxes have ids that begin with " + quote(text));
      for (const std::string& id : matching) error.hint(id);
      throw error;
    }
  }
  Error error = usage_error("there is no sandbox " + quote(text));
  for (const std::string& near : nearest_names(text, candidates)) error.hint("did you mean " + near);
  throw std::move(error).hint("dsec ps -a lists all sandboxes");
}

void SandboxRecords::free_name(const std::string& id, const std::string& name) {
  if (name.empty()) return;
  std::error_code error;
  const fs::path link = home_.names() / name;
  if (fs::read_symlink(link, error).native() == id) ::unlink(link.c_str());
}

void SandboxRecords::remove(const std::string& id, const std::string& name) {
  free_name(id, name);
  remove_tree(directory(id));
}

fs::path SandboxRecords::take_away(const std::string& id, const std::string& name) {
  free_name(id, name);
  fs::path away = home_.sandboxes() / unfinished_name(ProcessIdentity::self(), id);
  if (::rename(directory(id).c_str(), away.c_str()) != 0) throw system_error("rename " + quote(directory(id).native()));
  return away;
}

SandboxInfo describe(const Lease& lease, const RunnerStatus& status) {
  SandboxInfo info;
  info.id = lease.id;
  info.spec = lease.spec;
  info.created = lease.created;
  info.state = status.state;
  info.reason = status.reason;
  info.ended = status.ended;
  info.main_result = status.main_result;
  info.command = status.command;
  info.keeper_pid = status.keeper_pid;
  if (info.state == SandboxState::Creating && !lease.creator.alive()) {
    info.state = SandboxState::Orphaned;
    info.reason = "the process that was making it is gone";
  }
  return info;
}

namespace {

// Why a sandbox is of no more use, or empty.
std::string sweep_reason(const SandboxInfo& info, const Lease& lease) {
  if (info.state == SandboxState::Orphaned) return info.reason.empty() ? "its keeper is gone" : info.reason;
  const bool ended = info.state == SandboxState::Stopped || info.state == SandboxState::Failed;
  // No main command: it is a build step's, or its maker died before the command began.
  const bool live = info.state == SandboxState::Running || info.state == SandboxState::Paused;
  if (live && lease.spec.made_for_command && info.command.empty() && !lease.creator.alive())
    return "the process that made it for a command is gone";
  // Whoever started it removes it when it ends, as long as that process lives.
  if (ended && lease.spec.remove_at_end && !lease.creator.alive())
    return "it has ended and was to be removed at its end";
  return "";
}

std::vector<SweptSandbox> sweep_unfinished(const Home& home, bool dry_run) {
  std::vector<SweptSandbox> swept;
  for (const std::string& name : entries(home.sandboxes())) {
    if (!temp_file_is_stale(name)) continue;
    swept.push_back({name.substr(name.rfind('-') + 1), "the process that was making or removing it is gone"});
    if (!dry_run) remove_tree(home.sandboxes() / name);
  }
  return swept;
}

}  // namespace

std::vector<SweptSandbox> sweep_sandboxes(const Home& home, const Runners& runners, bool dry_run) {
  SandboxRecords records(home);
  std::vector<SweptSandbox> swept = sweep_unfinished(home, dry_run);
  for (const std::string& id : records.ids()) {
    const fs::path directory = records.directory(id);
    FileLock lock = FileLock::try_lock(directory / "lock", FileLock::Mode::Exclusive);
    if (!lock) continue;  // somebody is changing it right now
    std::optional<Lease> lease;
    try {
      lease = records.lease(id);
    } catch (const Error&) {
      // A damaged lease names nothing that could be spared.
    }
    if (lease && !runners.contains(lease->spec.backend)) continue;
    Runner& runner = lease ? runners.at(lease->spec.backend).get() : runners.begin()->second.get();
    const std::string reason =
        lease ? sweep_reason(describe(*lease, runner.status(directory)), *lease) : "its record is damaged";
    if (reason.empty()) continue;
    swept.push_back({id, reason});
    if (dry_run) continue;
    attempt("cannot remove what is left of sandbox " + id, [&] {
      runner.reclaim(directory);
      records.remove(id, lease ? lease->spec.name : "");
    });
  }
  for (const std::string& name : entries(home.names())) {
    std::error_code error;
    const std::string id = fs::read_symlink(home.names() / name, error).native();
    const bool dangling = !fs::exists(records.directory(id)) && !is_being_made(home, id);
    if (!dry_run && dangling) ::unlink((home.names() / name).c_str());
  }
  if (!dry_run) sweep_creation_keys(home);
  return swept;
}

void release_shared(const Home& home, const Runners& runners) {
  if (!SandboxRecords(home).ids().empty()) return;
  for (const auto& [name, runner] : runners) runner.get().release_shared();
}

std::vector<Digest> leased_layers(const Home& home) {
  std::vector<Digest> layers;
  for (const std::string& name : entries(home.sandboxes())) {
    try {
      if (const auto lease = Lease::read(home.sandboxes() / name))
        layers.insert(layers.end(), lease->spec.layers.begin(), lease->spec.layers.end());
    } catch (const Error&) {
      // Being written or removed, or damaged: it holds nothing that runs.
    }
  }
  const std::vector<Digest> saved = MemorySnapshots(home).layers();
  layers.insert(layers.end(), saved.begin(), saved.end());
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

}  // namespace dsec::engine
