#include "runners/vm/machine_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/isolation/disk_image.h"
#include "runners/vm/machine_root.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr char kSocket[] = "disk.sock";
// One for each size that --disk asks for: those that were made last.
constexpr std::size_t kMostEmpty = 8;

void remove_oldest(const fs::path& place) {
  std::vector<fs::path> layers;
  for (const auto& entry : fs::directory_iterator(place))
    if (entry.path().extension() == ".obd") layers.push_back(entry.path());
  if (layers.size() <= kMostEmpty) return;
  std::error_code gone;
  std::sort(layers.begin(), layers.end(), [&](const fs::path& left, const fs::path& right) {
    return fs::last_write_time(left, gone) > fs::last_write_time(right, gone);
  });
  for (std::size_t i = kMostEmpty; i < layers.size(); ++i) ::unlink(layers[i].c_str());
}

// The layer of an empty filesystem, which is the same for all of a size. Disks have it by another name: whoever removes
// it takes it from nobody.
fs::path empty_layer(engine::MachineDisks& disks, const fs::path& home, std::uint64_t bytes) {
  const fs::path place = home / "vm" / "disks", layer = place / ("ext4-" + std::to_string(bytes) + ".obd");
  if (fs::exists(layer)) return layer;
  make_directories(place, 0700);
  const TempDirectory work(place);
  make_disk_image(work.path() / "image", bytes);
  const fs::path made = work.path() / "layer";
  disks.pack(work.path() / "image", made);
  // In the place of what another process has made meanwhile, which is as good.
  if (::rename(made.c_str(), layer.c_str()) != 0) throw system_error("rename " + quote(made.native()));
  remove_oldest(place);
  return layer;
}

}  // namespace

void MachineDisk::create_empty(const fs::path& home, std::uint64_t bytes) {
  disks_.create(place(), {.below = {}, .layers = {empty_layer(disks_, home, bytes)}, .size = 0});
}

void MachineDisk::create_from(const fs::path& snapshot) {
  disks_.create(place(), {.below = {}, .layers = disks_.layers(snapshot), .size = 0});
}

bool MachineDisk::exists() const { return fs::exists(place()); }

void MachineDisk::serve(const SandboxCgroups& cgroups) {
  if (disks_.is_served(place())) return;
  std::vector<UniqueFd> groups = cgroups.join_descriptors();
  groups.emplace_back(::openat(cgroups.v2(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  if (!groups.back()) throw system_error("open the control group of its disk");
  engine::MachineDisks::Service service{.socket = sandbox_ / kMachineDirectory / kSocket};
  for (const UniqueFd& group : groups) service.groups.push_back(group.get());
  disks_.serve(place(), service);
}

MachineDrive MachineDisk::drive(const std::string& id) {
  return {.id = id, .file = {}, .nbd = fs::path(kMachineInside) / kSocket, .read_only = false};
}

void MachineDisk::seal(const fs::path& snapshot) { disks_.seal(place(), snapshot); }

}  // namespace dsec::runners
