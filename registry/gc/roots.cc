#include "registry/gc/roots.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "core/base/directory_names.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/lease.h"
#include "core/engine/trajectory.h"

namespace dsec::registry {
namespace fs = std::filesystem;
namespace {

// Unreadable is not gone: a disk that is not mounted yet would cost the layers otherwise.
bool is_gone(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

std::set<std::string> column(Database& index, std::string_view sql) {
  std::set<std::string> values;
  Statement query = index.prepare(sql);
  while (query.step()) values.insert(query.text(0));
  return values;
}

// What cannot be listed holds nobody knows what.
std::vector<std::string> names_in(const fs::path& directory, std::vector<std::string>& problems) {
  try {
    return directory_names(directory);
  } catch (const Error& error) {
    problems.push_back(error.message());
    return {};
  }
}

}  // namespace

void LeasedLayers::refresh(const engine::Home& home) {
  std::map<std::string, std::vector<Digest>> present;
  unreadable.clear();
  std::error_code missing;
  for (const std::string& id : names_in(home.sandboxes(), unreadable)) {
    const fs::path sandbox = home.sandboxes() / id;
    if (temp_file_is_stale(id)) continue;
    if (const auto known = by_sandbox.find(id); known != by_sandbox.end()) {
      present.insert(*known);
      continue;
    }
    // A directory that its maker has not named yet holds a lease like any other.
    try {
      if (const auto lease = engine::Lease::read(sandbox)) present.emplace(id, lease->spec.layers);
    } catch (const Error& error) {
      if (fs::exists(sandbox / "lease.json", missing)) unreadable.push_back(id + ": " + error.message());
    }
  }
  by_sandbox = std::move(present);

  // After the leases: a sandbox that is removed meanwhile leaves its trajectory.
  std::map<std::string, std::vector<Digest>> kept;
  unreadable_trajectories.clear();
  // Not to be able to list them is worse than one that is damaged: nothing is known of any.
  for (const std::string& id : names_in(home.trajectories(), unreadable)) {
    const fs::path trajectory = home.trajectories() / id;
    if (const auto known = by_trajectory.find(id); known != by_trajectory.end()) {
      kept.insert(*known);
      continue;
    }
    try {
      for (const auto& layer : engine::read_trajectory_header(trajectory).layers) kept[id].push_back(layer.digest);
    } catch (const Error& error) {
      if (fs::exists(trajectory / engine::kTrajectoryLog, missing)) unreadable_trajectories.push_back(error.message());
    }
  }
  by_trajectory = std::move(kept);
}

Plan make_plan(Database& index, const LeasedLayers& leases, const Ignored& ignored) {
  Plan plan;
  std::set<std::int64_t> live;
  Statement sessions = index.prepare("SELECT id, boot_id, pid, start_ticks FROM sessions");
  while (sessions.step()) {
    const engine::ProcessIdentity owner{sessions.text(1), static_cast<pid_t>(sessions.number(2)),
                                        static_cast<std::uint64_t>(sessions.number(3))};
    if (owner.alive())
      live.insert(sessions.number(0));
    else
      plan.dead_sessions.push_back(sessions.number(0));
  }

  std::set<std::string> roots = column(index, "SELECT layer FROM tags UNION SELECT layer FROM pins");
  Statement locks = index.prepare("SELECT path FROM locks");
  while (locks.step()) {
    const std::string path = locks.text(0);
    if (is_gone(path)) {
      plan.dead_locks.push_back(path);
      continue;
    }
    Statement layers = index.prepare("SELECT layer FROM lock_layers WHERE path = ?");
    layers.bind(path);
    while (layers.step()) roots.insert(layers.text(0));
  }
  const auto hold = [&](const std::map<std::string, std::vector<Digest>>& holders, const std::set<std::string>& going) {
    for (const auto& [id, layers] : holders)
      if (!going.contains(id))
        for (const Digest& layer : layers) roots.insert(layer.hex());
  };
  hold(leases.by_sandbox, ignored.sandboxes);
  hold(leases.by_trajectory, ignored.trajectories);
  std::set<std::string> held_blobs;
  for (const std::int64_t session : live) {
    Statement layers = index.prepare("SELECT layer FROM session_layers WHERE session = ?");
    layers.bind(session);
    while (layers.step()) roots.insert(layers.text(0));
    Statement blobs = index.prepare("SELECT blob FROM session_blobs WHERE session = ?");
    blobs.bind(session);
    while (blobs.step()) held_blobs.insert(blobs.text(0));
  }

  // What each layer keeps: that its steps ran on, and what a snapshot stands on.
  std::map<std::string, std::vector<std::string>> keeps;
  Statement layers = index.prepare("SELECT digest, built_on, kind, manifest FROM layers");
  while (layers.step()) {
    std::vector<std::string>& below = keeps[layers.text(0)];
    if (const std::string built_on = layers.text(1); !built_on.empty()) below.push_back(built_on);
    if (layers.text(2) != to_string(LayerKind::Snapshot)) continue;
    for (const Digest& lower : LayerManifest::parse(layers.text(3), "of layer " + layers.text(0)).lowers)
      below.push_back(lower.hex());
  }
  std::vector<std::string> pending(roots.begin(), roots.end());
  while (!pending.empty()) {
    const std::string layer = std::move(pending.back());
    pending.pop_back();
    const auto found = keeps.find(layer);
    if (found == keeps.end() || !plan.kept_layers.insert(Digest::parse(layer)).second) continue;
    pending.insert(pending.end(), found->second.begin(), found->second.end());
  }
  for (const auto& [layer, below] : keeps)
    if (const Digest digest = Digest::parse(layer); !plan.kept_layers.contains(digest))
      plan.doomed_layers.push_back(digest);

  for (const Digest& layer : plan.kept_layers) {
    Statement blobs = index.prepare("SELECT blob FROM layer_blobs WHERE layer = ?");
    blobs.bind(layer.hex());
    while (blobs.step()) held_blobs.insert(blobs.text(0));
  }
  Statement blobs = index.prepare("SELECT digest, size FROM blobs");
  while (blobs.step())
    if (!held_blobs.contains(blobs.text(0)))
      plan.doomed_blobs.push_back({Digest::parse(blobs.text(0)), static_cast<std::uint64_t>(blobs.number(1))});
  return plan;
}

}  // namespace dsec::registry
