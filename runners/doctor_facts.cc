#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/engine/sandbox_id.h"
#include "runners/doctor.h"
#include "runners/egress/namespace.h"
#include "runners/isolation/cgroups.h"
#include "runners/isolation/disk_image.h"
#include "runners/isolation/id_map.h"
#include "runners/isolation/project_quota.h"

namespace dsec::runners {
namespace {

namespace fs = std::filesystem;

/// Empty when `probe` works, else why not.
template <typename Probe>
std::string reason(Probe&& probe) {
  try {
    probe();
    return {};
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string status_field(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(name + ':', 0) == 0) return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  return {};
}

void look_at_kernel(HostFacts& facts) {
  utsname name{};
  ::uname(&name);
  facts.kernel_release = name.release;
  std::sscanf(name.release, "%d.%d", &facts.kernel_major, &facts.kernel_minor);
  facts.erofs = reason([] { FsContext("erofs"); });
  facts.overlay = reason([] { FsContext("overlay"); });
  facts.egress = probe_egress();
  if (status_field("Seccomp").empty()) facts.seccomp = "/proc/self/status does not tell of it";
  facts.user_namespaces = reason([] { make_user_namespace(id_map_for("doctor", host_id_range())); });
}

std::string container_of_this_process() {
  if (const char* named = std::getenv("container"); named != nullptr && *named != '\0') return named;
  if (fs::exists("/.dockerenv")) return "docker";
  if (fs::exists("/run/.containerenv")) return "podman";
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "kubernetes";
  return {};
}

void look_at_permissions(HostFacts& facts) {
  facts.root = ::geteuid() == 0;
  facts.capabilities = std::strtoull(status_field("CapEff").c_str(), nullptr, 16);
  std::istringstream map(first_line("/proc/self/uid_map"));
  std::uint64_t inside = 0, outside = 0, count = 0;
  map >> inside >> outside >> count;
  facts.initial_user_namespace = inside == 0 && outside == 0 && count == 0xffffffff;
  facts.container = container_of_this_process();
}

void look_at_cgroups(HostFacts& facts) {
  const CgroupHost host(engine::random_id(6));
  bool v1 = false, v2 = false;
  for (const CgroupHierarchy& each : host.hierarchies()) {
    v1 = v1 || !each.v2;
    v2 = v2 || (each.v2 && !each.root.empty());
  }
  facts.cgroup_layout = v1 && v2 ? "v1 and v2" : v2 ? "v2" : v1 ? "v1" : "none";
  std::string why;
  if (!host.has_lifecycle(&why)) facts.cgroup_lifecycle = why;
  facts.cgroup_limits["memory"] = reason([&] { host.check({.memory = 1 << 30}); });
  facts.cgroup_limits["cpu"] = reason([&] { host.check({.cpus = 1.0}); });
  facts.cgroup_limits["pids"] = reason([&] { host.check({.pids = 100}); });
  host.remove_unused_parents();
}

fs::path nearest_existing(fs::path path) {
  std::error_code ignored;
  while (!fs::is_directory(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

/// By its magic number; "0x…" for those that we do not name.
std::string filesystem_name(long type) {
  static const std::map<long, const char*> names = {
      {0xef53, "ext4"},        {0x58465342, "xfs"},   {0x9123683e, "btrfs"},   {0x01021994, "tmpfs"},
      {0x794c7630, "overlay"}, {0x65735546, "fuse"},  {0x6969, "nfs"},         {0x2fc12fc1, "zfs"},
      {0xf2f52010, "f2fs"},    {0xe0f5e1e2, "erofs"}, {0x73717368, "squashfs"}};
  const auto found = names.find(type);
  if (found != names.end()) return found->second;
  std::ostringstream text;
  text << "0x" << std::hex << type;
  return text.str();
}

void probe_storage(HostFacts& facts) {
  facts.home_writable = reason([&] { TempDirectory probe(facts.home); });
  if (!facts.home_writable.empty()) return;
  facts.overlay_on_home = reason([&] {
    const TempDirectory directory(facts.home);
    for (const char* name : {"lower", "writable", "writable/upper", "writable/work"})
      make_directories(directory.path() / name);
    const UniqueFd lower = clone_mount(directory.path() / "lower"),
                   writable = clone_mount(directory.path() / "writable");
    const int lowers[] = {lower.get()};
    make_overlay({.lowers = lowers, .writable = writable.get()});
  });
  facts.id_mapped_mounts = reason([&] {
    const TempDirectory directory(facts.home);
    const UniqueFd users = make_user_namespace(id_map_for("doctor", host_id_range()));
    idmap_mount(clone_mount(directory.path()).get(), users.get(), "a directory of DSEC_HOME");
  });
  facts.erofs_from_file = reason([&] {
    // A file of zeros is no image; the question is whether the kernel looks into it at all, or wants a block device.
    const TempFile file(facts.home);
    if (::ftruncate(file.fd(), 4096) != 0) throw system_error("make a file of a block");
    FsContext context("erofs");
    context.set("source", file.path().string());
    if (const int failed = context.try_create(); failed == ENOTBLK || failed == EPERM || failed == ENODEV)
      throw context.error("mount EROFS from a file", failed);
  });
}

void look_at_storage(HostFacts& facts, const fs::path& home) {
  facts.home = nearest_existing(fs::absolute(home));
  struct statfs type {};
  if (::statfs(facts.home.c_str(), &type) == 0) facts.home_filesystem = filesystem_name(static_cast<long>(type.f_type));
  facts.home_is_stacked = facts.home_filesystem == "overlay";
  struct statvfs space {};
  if (::statvfs(facts.home.c_str(), &space) == 0) {
    facts.home_free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
    // Filesystems that make inodes as they need them count none.
    facts.home_free_files = space.f_files == 0 ? UINT64_MAX : space.f_favail;
  }
  probe_storage(facts);
  reason([&] { facts.home_has_quotas = enforces_project_quotas(facts.home); });
  facts.loop_devices = reason([] {
    if (::access("/dev/loop-control", R_OK | W_OK) != 0) throw system_error("open '/dev/loop-control'");
  });
}

std::string find_program(const std::string& name) {
  std::istringstream path(std::string(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "") + ":/usr/sbin:/sbin");
  for (std::string directory; std::getline(path, directory, ':');) {
    const std::string candidate = directory + '/' + name;
    if (!directory.empty() && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

void look_at_tools(HostFacts& facts) {
  for (const char* name : {"mkfs.ext4", "mmdebstrap"}) facts.tools[name] = find_program(name);
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& candidate : {program / "dsec-init", program.parent_path() / "libexec/dsec/dsec-init"})
    if (::access(candidate.c_str(), X_OK) == 0 && !facts.init_program) facts.init_program = candidate.string();
}

void look_at_limits(HostFacts& facts) {
  for (const char* name :
       {"kernel.pid_max", "kernel.threads-max", "user.max_user_namespaces", "user.max_mnt_namespaces",
        "user.max_net_namespaces", "user.max_pid_namespaces", "fs.mount-max", "fs.file-max",
        "fs.inotify.max_user_instances", "kernel.unprivileged_userns_clone"}) {
    std::string path = name;
    for (char& c : path)
      if (c == '.') c = '/';
    const std::string text = first_line("/proc/sys/" + path);
    char* end = nullptr;
    const std::uint64_t value = std::strtoull(text.c_str(), &end, 10);
    if (!text.empty() && end != text.c_str()) facts.sysctl[name] = value;
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  facts.open_files_limit = files.rlim_max;
}

}  // namespace

HostFacts examine_host(const DoctorOptions& options) {
  HostFacts facts;
  look_at_kernel(facts);
  look_at_permissions(facts);
  if (const std::string failed = reason([&] { look_at_cgroups(facts); }); !failed.empty()) {
    facts.cgroup_layout = "none";
    facts.cgroup_lifecycle = failed;
  }
  look_at_storage(facts, options.home);
  look_at_tools(facts);
  if (options.examine_mkfs) options.examine_mkfs(facts);
  look_at_limits(facts);
  return facts;
}

}  // namespace dsec::runners
