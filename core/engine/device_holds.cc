#include "core/engine/device_holds.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/engine/sandbox_records.h"

namespace dsec::engine {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

constexpr std::size_t kMostDevices = 64;
constexpr milliseconds kLookAgain{20};

/// By the device that a path stands for, so that two names of one do not make it two.
fs::path lock_of(const Home& home, const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) throw system_error("give the device " + quote(path));
  if (!S_ISCHR(info.st_mode)) throw usage_error(quote(path) + " is no character device, and only those can be given");
  return home.run() / "devices" / (std::to_string(major(info.st_rdev)) + "-" + std::to_string(minor(info.st_rdev)));
}

std::string holders(const Home& home, const std::vector<std::string>& paths) {
  const SandboxRecords records(home);
  std::string found;
  for (const std::string& id : records.ids()) {
    try {
      const std::optional<Lease> lease = records.lease(id);
      if (!lease) continue;
      const bool has = std::any_of(lease->spec.devices.begin(), lease->spec.devices.end(), [&](const auto& device) {
        return std::find(paths.begin(), paths.end(), device.source) != paths.end();
      });
      if (has) found += (found.empty() ? "" : ", ") + (lease->spec.name.empty() ? id : lease->spec.name);
    } catch (const Error&) {
      // It is being made or removed.
    }
  }
  return found.empty() ? "" : "; given to " + found;
}

std::vector<FileLock> choose(const Home& home, SandboxSpec& spec) {
  const GpuWish& wish = *spec.gpus;
  if (wish.count == 0 || wish.count > wish.devices.size())
    throw usage_error(std::to_string(wish.count) + " of " + std::to_string(wish.devices.size()) +
                      " devices are wanted, which cannot be");
  const auto mode = wish.exclusive ? FileLock::Mode::Exclusive : FileLock::Mode::Shared;
  const auto end = steady_clock::now() + wish.wait;
  // From another one each time, so that those who share are spread.
  const std::size_t first =
      static_cast<std::size_t>(steady_clock::now().time_since_epoch().count()) % wish.devices.size();
  for (;;) {
    std::vector<FileLock> taken;
    std::vector<DeviceGrant> chosen;
    for (std::size_t i = 0; i < wish.devices.size() && taken.size() < wish.count; ++i) {
      const std::string& path = wish.devices[(first + i) % wish.devices.size()];
      if (FileLock lock = FileLock::try_lock(lock_of(home, path), mode)) {
        taken.push_back(std::move(lock));
        chosen.push_back({path, path});
      }
    }
    if (taken.size() == wish.count) {
      spec.devices.insert(spec.devices.end(), chosen.begin(), chosen.end());
      return taken;
    }
    if (steady_clock::now() >= end)
      throw failure(std::to_string(wish.count) + " of " + std::to_string(wish.devices.size()) + " devices are wanted" +
                    (wish.exclusive ? " alone, and " : ", and ") + std::to_string(taken.size()) + " are free" +
                    holders(home, wish.devices))
          .hint("try again when one of them has ended");
    taken.clear();
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace

std::vector<FileLock> hold_devices(const Home& home, SandboxSpec& spec) {
  if (spec.devices.empty() && !spec.gpus) return {};
  make_directories(home.run() / "devices", 0700);
  // A spec that was made before has what was chosen then.
  if (spec.gpus) {
    const auto& from = spec.gpus->devices;
    std::erase_if(spec.devices, [&](const DeviceGrant& device) {
      return std::find(from.begin(), from.end(), device.source) != from.end();
    });
  }
  std::vector<FileLock> held;
  for (const DeviceGrant& device : spec.devices) {
    FileLock lock = FileLock::try_lock(lock_of(home, device.source), FileLock::Mode::Shared);
    if (!lock)
      throw failure("device " + quote(device.source) + " is in use by one sandbox alone" +
                    holders(home, {device.source}))
          .hint("try again when that has ended");
    held.push_back(std::move(lock));
  }
  if (spec.gpus)
    for (FileLock& lock : choose(home, spec)) held.push_back(std::move(lock));
  if (spec.devices.size() > kMostDevices)
    throw usage_error("at most " + std::to_string(kMostDevices) + " devices can be given");
  std::set<std::string> targets;
  for (const DeviceGrant& device : spec.devices)
    if (!targets.insert(device.target).second) throw usage_error("two devices are to be " + quote(device.target));
  return held;
}

}  // namespace dsec::engine
