#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dsec::runners {

enum class CheckStatus {
  Ok,
  Warn,  ///< works, but slower or less than it could
  Fail,  ///< something that dsec is for does not work
};

/// One thing about this host.
struct HostCheck {
  std::string group;  ///< "kernel", "permissions", "cgroups", "storage", "tools", "limits"
  std::string name;   ///< "id-mapped mounts"
  CheckStatus status = CheckStatus::Ok;
  std::string found;  ///< "Linux 6.1.0"
  std::string mend;   ///< how to; empty when there is nothing to mend
};

/// What dsec can do here as it is.
struct HostAbility {
  std::string what;  ///< "run sandboxes"
  bool works = false;
  std::string why;  ///< when it does not
};

struct HostReport {
  std::vector<HostCheck> checks;
  std::vector<HostAbility> abilities;
  std::string place;  ///< "an unprivileged container (docker)", "this host", …
};

/// What the judgement rests on, so that other hosts can be judged in tests. Texts of probes are empty when they worked,
/// else the reason why not.
struct HostFacts {
  int kernel_major = 0, kernel_minor = 0;
  std::string kernel_release;

  bool root = false;
  std::uint64_t capabilities = 0;  ///< effective
  bool initial_user_namespace = true;
  std::string container;  ///< "docker", "podman", "kubernetes", "lxc", …; empty: none seen

  std::string erofs, erofs_from_file, overlay, overlay_on_home, id_mapped_mounts, user_namespaces, seccomp, egress,
      loop_devices;

  std::string cgroup_layout;                         ///< "v2", "v1 and v2", "v1", "none"
  std::string cgroup_lifecycle;                      ///< probe
  std::map<std::string, std::string> cgroup_limits;  ///< "memory", "cpu", "pids" -> probe

  std::filesystem::path home;   ///< or the nearest directory above it that exists
  std::string home_filesystem;  ///< "ext4"
  std::string home_writable;    ///< probe
  std::uint64_t home_free_bytes = 0, home_free_files = 0;
  bool home_has_quotas = false, home_is_stacked = false;

  std::string mkfs_erofs;                    ///< "1.9.4, /usr/…"; empty: none
  std::string mkfs_erofs_problem;            ///< what is wrong with it
  std::optional<std::string> init_program;   ///< path of dsec-init
  std::map<std::string, std::string> tools;  ///< name -> path, "" when missing: mkfs.ext4, mmdebstrap

  /// Numbers of /proc/sys, by their names with dots; absent: this kernel does not have them.
  std::map<std::string, std::uint64_t> sysctl;
  std::uint64_t open_files_limit = 0;  ///< hard RLIMIT_NOFILE
};

struct DoctorOptions {
  std::filesystem::path home;
  /// Fills mkfs_erofs and mkfs_erofs_problem: another room knows which versions serve.
  std::function<void(HostFacts&)> examine_mkfs;
};

/// Looks at this host. Leaves nothing behind, changes nothing; never throws for what it finds.
HostFacts examine_host(const DoctorOptions& options);
/// Says what the facts mean.
HostReport judge_host(const HostFacts& facts);

}  // namespace dsec::runners
