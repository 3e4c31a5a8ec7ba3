#include "core/engine/creation_keys.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "core/engine/sandbox_id.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

fs::path place_of(const Home& home) { return home.root() / "keys"; }

// A key may have slashes, begin with a dot and be called like the lock; it has no '%' and no '='.
fs::path link_of(const Home& home, const std::string& key) {
  std::string name = "=" + key;
  std::replace(name.begin(), name.end(), '/', '%');
  return place_of(home) / name;
}

fs::path lock_in(const fs::path& directory) {
  make_directories(directory, 0700);
  return directory / "lock";
}

}  // namespace

CreationKeys::CreationKeys(const Home& home) : home_(home), lock_(lock_in(place_of(home)), FileLock::Mode::Exclusive) {}

std::optional<std::string> CreationKeys::find(const std::string& key) const {
  std::error_code error;
  const std::string id = fs::read_symlink(link_of(home_, key), error).native();
  if (error || !is_sandbox_id(id)) return std::nullopt;
  if (fs::exists(home_.sandboxes() / id)) return id;
  const fs::path trajectory = home_.trajectories() / id;
  if (!fs::exists(trajectory / kTrajectoryLog) || !find_operation(trajectory, key)) return std::nullopt;
  return id;
}

void CreationKeys::take(const std::string& key, const std::string& id) const {
  const fs::path link = link_of(home_, key);
  ::unlink(link.c_str());
  if (::symlink(id.c_str(), link.c_str()) != 0) throw system_error("make the link " + quote(link.native()));
  sync_directory(place_of(home_));
}

void sweep_creation_keys(const Home& home) {
  if (!fs::exists(place_of(home))) return;
  const CreationKeys alone(home);
  std::error_code error;
  for (fs::directory_iterator at(place_of(home), error), end; !error && at != end; at.increment(error)) {
    std::error_code no_link;
    const std::string id = fs::read_symlink(at->path(), no_link).native();
    if (no_link || fs::exists(home.sandboxes() / id) || fs::exists(home.trajectories() / id)) continue;
    ::unlink(at->path().c_str());
  }
}

}  // namespace dsec::engine
