#include "runners/container/device_tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/container/guest_place.h"
#include "runners/isolation/sandbox_paths.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPlaces[] = {"pts", "shm", "mqueue", "console"};

bool is_taken(const std::string& name) {
  for (const char* each : kPlaces)
    if (name == each) return true;
  for (const DeviceNode& each : kDevices)
    if (name == each.name) return true;
  for (const DeviceLink& each : kDeviceLinks)
    if (name == each.name) return true;
  return false;
}

// Whatever the umask.
void make_open_directory(const fs::path& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) throw system_error("mkdir " + quote(path.native()));
  if (::chmod(path.c_str(), 0755) != 0) throw system_error("set the mode of " + quote(path.native()));
}

void make_node(const fs::path& dev, const DeviceGrant& device) {
  struct stat info = {};
  if (::stat(device.source.c_str(), &info) != 0) throw system_error("stat it");
  const fs::path relative = fs::path(device.target).lexically_relative("/dev");
  fs::path path = dev;
  for (const fs::path& part : relative.parent_path()) make_open_directory(path /= part);
  path = dev / relative;
  if (::mknod(path.c_str(), (info.st_mode & 0777) | S_IFCHR, info.st_rdev) != 0)
    throw system_error("make a node of it");
  if (::chown(path.c_str(), info.st_uid, info.st_gid) != 0 || ::chmod(path.c_str(), info.st_mode & 0777) != 0)
    throw system_error("set owner and mode of its node");
}

}  // namespace

void check_devices(const std::vector<DeviceGrant>& devices) {
  for (const DeviceGrant& device : devices) {
    const std::string first = fs::path(device.target).lexically_relative("/dev").begin()->native();
    if (is_taken(first))
      throw usage_error("a sandbox has a /dev/" + first + " already").hint("--device /dev/NAME:/dev/OTHER");
    struct stat info = {};
    if (::stat(device.source.c_str(), &info) != 0) throw system_error("give the device " + quote(device.source));
    if (!S_ISCHR(info.st_mode)) throw usage_error(quote(device.source) + " is no character device");
  }
}

void make_device_tree(const fs::path& dev, const std::vector<DeviceGrant>& devices) {
  make_open_directory(dev);
  fill_dev(dev);
  for (const char* name : {"pts", "shm", "mqueue"}) make_open_directory(dev / name);
  for (const DeviceGrant& device : devices)
    attempt("cannot give the device " + quote(device.source), [&] { make_node(dev, device); });
}

}  // namespace dsec::runners
