#include "core/engine/memory_snapshots.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr char kDescription[] = "snapshot.json";
// Saved guests, which lie beside them in lists, are called so.
constexpr std::size_t kGuestName = 12;

bool is_name(const std::string& name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || c == '_' || c == '.' || c == '-'; });
}

std::uint64_t allocated(const fs::path& place) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(place)) {
    struct stat info {};
    if (::lstat(file.path().c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

void describe(const fs::path& place, const MemorySnapshot& snapshot) {
  const Json json{
      {"version", kVersion}, {"sandbox", snapshot.sandbox}, {"made", snapshot.made}, {"spec", to_json(snapshot.spec)}};
  write_file_atomic(place / kDescription, canonical_json(json) + "\n", 0600);
}

MemorySnapshot read(const fs::path& place) {
  return attempt("cannot read the memory snapshot " + quote(place.filename().native()), [&] {
    const fs::path path = place / kDescription;
    const Json json = parse_json(read_file(path, 4 << 20), path.native());
    if (json_u64(json, "version") != kVersion) throw failure("another version of dsec has saved it");
    MemorySnapshot snapshot;
    snapshot.name = place.filename().native();
    snapshot.sandbox = json_string(json, "sandbox");
    snapshot.made = json_u64(json, "made");
    const auto spec = json.find("spec");
    if (spec == json.end()) throw failure("it does not say of what it is");
    try {
      snapshot.spec = sandbox_spec_from_json(*spec);
    } catch (const Json::exception& error) {
      throw failure(quote(path.native()) + " is damaged: " + error.what());
    }
    snapshot.place = place;
    snapshot.bytes = allocated(place);
    return snapshot;
  });
}

}  // namespace

MemorySnapshots::Draft::Draft(const MemorySnapshots& snapshots, MemorySnapshot snapshot)
    : all_((make_directories(snapshots.place_, 0700), snapshots.place_)), snapshot_(std::move(snapshot)), files_(all_) {
  snapshot_.place = files_.path();
  describe(files_.path(), snapshot_);
}

MemorySnapshot MemorySnapshots::Draft::keep() {
  const FileLock lock(all_ / ".lock", FileLock::Mode::Exclusive);
  const fs::path target = all_ / snapshot_.name;
  if (fs::exists(target)) throw usage_error("there is a memory snapshot " + quote(snapshot_.name) + " already");
  fs::rename(files_.path(), target);
  sync_directory(all_);
  return read(target);
}

void MemorySnapshots::check_name(const std::string& name) const {
  if (!is_name(name))
    throw usage_error(quote(name) + " is no valid name for a memory snapshot")
        .hint("use letters, digits, '_', '.' and '-', at most 63, the first a letter or digit");
  if (name.size() == kGuestName && name.find_first_not_of("0123456789abcdef") == std::string::npos)
    throw usage_error(quote(name) + " could be the name of a saved guest").hint("choose another name");
  if (fs::exists(place_ / name))
    throw usage_error("there is a memory snapshot " + quote(name) + " already").hint("dsec vm snapshot rm " + name);
}

MemorySnapshot MemorySnapshots::find(const std::string& name) const {
  if (is_name(name) && fs::exists(place_ / name)) return read(place_ / name);
  Error error = usage_error("there is no memory snapshot " + quote(name));
  std::vector<std::string> names, problems;
  for (const MemorySnapshot& snapshot : list(problems)) names.push_back(snapshot.name);
  for (const std::string& near : nearest_names(name, names)) error.hint("did you mean " + near + "?");
  throw std::move(error).hint("dsec vm snapshot ls");
}

std::vector<MemorySnapshot> MemorySnapshots::list(std::vector<std::string>& problems) const {
  std::vector<MemorySnapshot> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(place_, none)) {
    if (!is_name(entry.path().filename().native())) continue;
    try {
      found.push_back(read(entry.path()));
    } catch (const Error& error) {
      problems.push_back(error.message());
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& left, const auto& right) { return left.name < right.name; });
  return found;
}

bool MemorySnapshots::remove(const std::string& name) const {
  if (!is_name(name) || !fs::exists(place_ / name)) return false;
  const FileLock lock(place_ / ".lock", FileLock::Mode::Exclusive);
  const TempDirectory aside(place_);
  std::error_code none;
  fs::rename(place_ / name, aside.path() / "old", none);
  sync_directory(place_);
  return !none;
}

std::vector<Digest> MemorySnapshots::layers() const {
  std::vector<Digest> layers;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(place_, none)) {
    if (!entry.is_directory(none)) continue;
    try {
      const MemorySnapshot snapshot = read(entry.path());
      layers.insert(layers.end(), snapshot.spec.layers.begin(), snapshot.spec.layers.end());
    } catch (const Error&) {
      // Being made or removed, or damaged: nothing can go on from it.
    }
  }
  return layers;
}

}  // namespace dsec::engine
