#include "runners/doctor.h"

#include <linux/capability.h>

#include "core/base/units.h"
#include "runners/isolation/capabilities.h"

namespace dsec::runners {
namespace {

/// Below this, an import of a usual base image does not fit.
constexpr std::uint64_t kLittleSpace = 5ull << 30, kNoSpace = 500ull << 20;

struct NeededCapability {
  unsigned number;
  const char* name;
  const char* purpose;
};
constexpr NeededCapability kNeeded[] = {
    {CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "mounts and namespaces"},
    {CAP_SETUID, "CAP_SETUID", "user namespaces"},
    {CAP_SETGID, "CAP_SETGID", "user namespaces"},
    {CAP_SETPCAP, "CAP_SETPCAP", "taking capabilities from what runs inside"},
    {CAP_SYS_CHROOT, "CAP_SYS_CHROOT", "entering sandboxes"},
    {CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "entering sandboxes"},
    {CAP_CHOWN, "CAP_CHOWN", "files of other users"},
    {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "files of other users"},
    {CAP_FOWNER, "CAP_FOWNER", "files of other users"},
    {CAP_KILL, "CAP_KILL", "ending sandboxes"},
};

class Judge {
 public:
  explicit Judge(const HostFacts& facts) : facts_(facts) {}

  HostReport report() {
    kernel();
    permissions();
    cgroups();
    storage();
    tools();
    limits();
    place();
    abilities();
    return std::move(report_);
  }

 private:
  void add(const char* group, std::string name, CheckStatus status, std::string found, std::string mend = {}) {
    report_.checks.push_back({group, std::move(name), status, std::move(found), std::move(mend)});
  }
  /// A probe that must work, or only should.
  void probe(const char* group, std::string name, const std::string& failed, CheckStatus otherwise, std::string mend) {
    if (failed.empty()) {
      add(group, std::move(name), CheckStatus::Ok, "works");
    } else {
      add(group, std::move(name), otherwise, failed, std::move(mend));
    }
  }
  bool has(unsigned capability) const { return (facts_.capabilities & capability_bit(capability)) != 0; }
  bool kernel_at_least(int major, int minor) const {
    return facts_.kernel_major != major ? facts_.kernel_major > major : facts_.kernel_minor >= minor;
  }
  /// Probes of an unprivileged caller fail for that one reason; what mends it is said once, under permissions.
  std::string unless_unprivileged(std::string mend) const {
    return facts_.root && has(CAP_SYS_ADMIN) ? std::move(mend) : "see permissions: root";
  }

  void kernel();
  void permissions();
  void cgroups();
  void storage();
  void tools();
  void limits();
  void limit(const char* name, std::uint64_t wanted, const char* what);
  void place();
  void abilities();

  const HostFacts& facts_;
  HostReport report_;
};

void Judge::kernel() {
  const std::string found = "Linux " + facts_.kernel_release;
  if (!kernel_at_least(6, 1)) {
    add("kernel", "version", CheckStatus::Fail, found, "install Linux 6.1 or newer (Debian 12 has it)");
  } else {
    add("kernel", "version", CheckStatus::Ok, found);
  }
  probe("kernel", "EROFS", facts_.erofs, CheckStatus::Fail,
        unless_unprivileged("load the module (modprobe erofs), or install a kernel with CONFIG_EROFS_FS"));
  if (facts_.erofs_from_file.empty() && !facts_.home_writable.empty()) {
    add("kernel", "EROFS from files", CheckStatus::Warn, "could not be tried without a writable DSEC_HOME");
  } else if (facts_.erofs_from_file.empty()) {
    add("kernel", "EROFS from files", CheckStatus::Ok, "works");
  } else if (facts_.loop_devices.empty()) {
    add("kernel", "EROFS from files", CheckStatus::Warn, facts_.erofs_from_file,
        facts_.home_is_stacked
            ? "keep DSEC_HOME on a filesystem that is not stacked; until then layers are mounted through loop devices"
            : "Linux 6.12 can; until then layers are mounted through loop devices");
  } else {
    add("kernel", "EROFS from files", CheckStatus::Fail,
        facts_.erofs_from_file + "; and no loop devices: " + facts_.loop_devices,
        unless_unprivileged("load the loop module (modprobe loop), or use Linux 6.12"));
  }
  probe("kernel", "overlayfs", facts_.overlay, CheckStatus::Fail,
        unless_unprivileged("load the module (modprobe overlay), or install a kernel with CONFIG_OVERLAY_FS"));
  probe("kernel", "user namespaces", facts_.user_namespaces, CheckStatus::Fail,
        unless_unprivileged("sysctl user.max_user_namespaces=100000 (and kernel.unprivileged_userns_clone=1 where it "
                            "exists), or run with "
                            "--userns host"));
  probe("kernel", "seccomp", facts_.seccomp, CheckStatus::Fail, "install a kernel with CONFIG_SECCOMP_FILTER");
  probe("kernel", "network policies", facts_.egress, CheckStatus::Warn,
        unless_unprivileged(
            "load the module (modprobe nft_tproxy), or install a kernel with CONFIG_NFT_TPROXY; until then "
            "sandboxes with a network policy are refused"));
}

void Judge::permissions() {
  if (!facts_.root) {
    add("permissions", "root", CheckStatus::Fail, "not root",
        "use sudo dsec for running sandboxes and build steps; import, publish, pull and inspect work without");
    return;
  }
  std::string missing;
  for (const NeededCapability& each : kNeeded)
    if (!has(each.number)) missing += std::string(missing.empty() ? "" : ", ") + each.name + " (" + each.purpose + ')';
  if (!missing.empty()) {
    add("permissions", "root", CheckStatus::Fail, "root without " + missing,
        facts_.container.empty()
            ? "give this process back the capabilities it was started without"
            : "start the container with --privileged (docker, podman) or securityContext.privileged (Kubernetes)");
  } else if (!facts_.initial_user_namespace) {
    add("permissions", "root", CheckStatus::Fail, "root of a user namespace: EROFS cannot be mounted in one",
        "run dsec as root of the host, not in a rootless container");
  } else {
    add("permissions", "root", CheckStatus::Ok, "root with all that is needed");
  }
}

void Judge::cgroups() {
  add("cgroups", "layout", facts_.cgroup_layout == "none" ? CheckStatus::Fail : CheckStatus::Ok, facts_.cgroup_layout,
      facts_.cgroup_layout == "none" ? "mount cgroup2 at /sys/fs/cgroup" : "");
  const std::string mend = unless_unprivileged(
      facts_.container.empty()
          ? "boot without cgroup_disable=, and see man dsec-isolation about DSEC_CGROUP_PARENT"
          : "start the container with a writable cgroup tree (docker: --privileged --cgroupns=private)");
  probe("cgroups", "lifecycle", facts_.cgroup_lifecycle, CheckStatus::Fail, mend);
  for (const auto& [name, failed] : facts_.cgroup_limits)
    probe("cgroups", name + " limits", failed, CheckStatus::Warn, mend);
}

void Judge::storage() {
  const std::string where = facts_.home.string() + " on " + facts_.home_filesystem;
  probe("storage", "DSEC_HOME", facts_.home_writable, CheckStatus::Fail, "name a directory of yours in DSEC_HOME");
  if (facts_.home_free_bytes < kNoSpace) {
    add("storage", "space", CheckStatus::Fail, format_size(facts_.home_free_bytes) + " free in " + where,
        "run dsec gc, or free space");
  } else {
    const bool little = facts_.home_free_bytes < kLittleSpace || facts_.home_free_files < 100'000;
    add("storage", "space", little ? CheckStatus::Warn : CheckStatus::Ok,
        format_size(facts_.home_free_bytes) + " free in " + where,
        little ? "run dsec gc, or free space and files" : "");
  }
  if (!facts_.home_writable.empty()) return;
  probe("storage", "writable layers", facts_.overlay_on_home, CheckStatus::Fail,
        unless_unprivileged("keep DSEC_HOME on ext4, xfs or btrfs: overlayfs needs extended attributes and file types "
                            "in its upper layer"));
  probe(
      "storage", "id-mapped mounts", facts_.id_mapped_mounts, CheckStatus::Fail,
      unless_unprivileged("keep DSEC_HOME on ext4, xfs or btrfs (tmpfs from Linux 6.3 on), or run with --userns host"));
  const bool images = facts_.loop_devices.empty() && !facts_.tools.at("mkfs.ext4").empty();
  if (facts_.home_has_quotas) {
    add("storage", "disk limits", CheckStatus::Ok, "by project quotas");
  } else if (images) {
    add("storage", "disk limits", CheckStatus::Ok,
        "by a filesystem in a file (project quotas would be cheaper: mount with prjquota)");
  } else {
    add("storage", "disk limits", CheckStatus::Warn,
        facts_.loop_devices.empty() ? "mkfs.ext4 is missing" : facts_.loop_devices,
        unless_unprivileged(
            "mount the filesystem of DSEC_HOME with prjquota, or have loop devices and the package e2fsprogs"));
  }
}

void Judge::tools() {
  if (facts_.mkfs_erofs.empty()) {
    add("tools", "mkfs.erofs", CheckStatus::Fail,
        facts_.mkfs_erofs_problem.empty() ? "missing" : facts_.mkfs_erofs_problem,
        "install erofs-utils 1.9.3 or newer, or name one in DSEC_MKFS_EROFS; ./dev build makes one");
  } else if (!facts_.mkfs_erofs_problem.empty()) {
    add("tools", "mkfs.erofs", CheckStatus::Fail, facts_.mkfs_erofs + ": " + facts_.mkfs_erofs_problem,
        "install erofs-utils 1.9.3 or newer, or name one in DSEC_MKFS_EROFS; ./dev build makes one");
  } else {
    add("tools", "mkfs.erofs", CheckStatus::Ok, facts_.mkfs_erofs);
  }
  if (facts_.init_program) {
    add("tools", "dsec-init", CheckStatus::Ok, *facts_.init_program);
  } else {
    add("tools", "dsec-init", CheckStatus::Fail, "not beside dsec", "install the whole of dsec: ./dev install PREFIX");
  }
  const std::string& mmdebstrap = facts_.tools.at("mmdebstrap");
  add("tools", "mmdebstrap", mmdebstrap.empty() ? CheckStatus::Warn : CheckStatus::Ok,
      mmdebstrap.empty() ? "missing: no layers from debootstrap:" : mmdebstrap,
      mmdebstrap.empty() ? "install the package mmdebstrap" : "");
}

void Judge::limit(const char* name, std::uint64_t wanted, const char* what) {
  const auto found = facts_.sysctl.find(name);
  if (found == facts_.sysctl.end()) return;
  if (found->second >= wanted) {
    add("limits", name, CheckStatus::Ok, std::to_string(found->second));
  } else {
    add("limits", name, CheckStatus::Warn, std::to_string(found->second) + ": " + what,
        "sysctl -w " + std::string(name) + '=' + std::to_string(wanted));
  }
}

void Judge::limits() {
  limit("kernel.pid_max", 65536, "a sandbox has a few processes at least, and all of them count");
  limit("kernel.threads-max", 65536, "a sandbox has a few processes at least, and all of them count");
  limit("user.max_user_namespaces", 1024, "one for each sandbox");
  limit("user.max_mnt_namespaces", 1024, "one for each sandbox");
  limit("user.max_net_namespaces", 1024, "one for each sandbox");
  limit("user.max_pid_namespaces", 1024, "one for each sandbox");
  limit("fs.mount-max", 100000, "a namespace holds one mount for each layer");
  limit("fs.inotify.max_user_instances", 128, "programs that watch files share them");
  const bool few = facts_.open_files_limit < 4096;
  add("limits", "open files", few ? CheckStatus::Warn : CheckStatus::Ok, std::to_string(facts_.open_files_limit),
      few ? "raise the hard limit: ulimit -Hn 1048576, or LimitNOFILE= of the service" : "");
}

void Judge::place() {
  const bool privileged = facts_.root && has(CAP_SYS_ADMIN) && facts_.initial_user_namespace;
  if (facts_.container.empty() && facts_.initial_user_namespace) {
    report_.place = privileged ? "this host, as root" : "this host, without root";
  } else {
    report_.place = std::string(privileged ? "a privileged" : "an unprivileged") + " container" +
                    (facts_.container.empty() ? "" : " (" + facts_.container + ')');
  }
}

void Judge::abilities() {
  // The first fault that stands in the way, of those that are listed.
  const auto first_fault = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names)
      for (const HostCheck& check : report_.checks)
        if (check.status == CheckStatus::Fail && check.name == name) return check.name + ": " + check.found;
    return {};
  };
  const auto ability = [&](std::string what, std::string why) {
    const bool works = why.empty();
    report_.abilities.push_back({std::move(what), works, std::move(why)});
  };
  ability("inspect, pull, publish, gc of layers", first_fault({"DSEC_HOME", "space"}));
  ability("import, and build without run steps", first_fault({"DSEC_HOME", "space", "mkfs.erofs"}));
  ability("mount layers", first_fault({"root", "version", "EROFS", "EROFS from files", "overlayfs", "DSEC_HOME"}));
  ability("run sandboxes, and build with run steps",
          first_fault({"root", "version", "EROFS", "EROFS from files", "overlayfs", "user namespaces", "seccomp",
                       "layout", "lifecycle", "DSEC_HOME", "writable layers", "id-mapped mounts", "dsec-init"}));
}

}  // namespace

HostReport judge_host(const HostFacts& facts) { return Judge(facts).report(); }

}  // namespace dsec::runners
