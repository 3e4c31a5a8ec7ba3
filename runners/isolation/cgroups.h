#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/model/sandbox_spec.h"

namespace dsec::runners {

/// One cgroup filesystem that this process sees.
struct CgroupHierarchy {
  bool v2 = false;
  std::string root;                      ///< where it is mounted; empty when only a detached mount of our own shows it
  std::vector<std::string> controllers;  ///< of v1: from its mount options; of v2: cgroup.controllers of its root
  bool read_only = false;
};

/// The hierarchies in the text of a /proc/<pid>/mountinfo; of v2 ones the controllers are still empty.
std::vector<CgroupHierarchy> parse_cgroup_mounts(std::string_view mountinfo);

/// The control groups of one host, and the place below which dsec makes its own: in each hierarchy one group
/// `dsec-<host id>` at the visible root (or in the group named by DSEC_CGROUP_PARENT, relative to it), and in it one
/// per sandbox, named by its id. So the id alone is enough to find them again. Lifecycle (clone into, freeze, kill)
/// goes through v2, which is mounted detached where the host does not show it; limits go through v2 controllers, or v1
/// ones where the host has those. Touches no group of others, but for one thing: on a v2 host a controller that a limit
/// needs is enabled in the groups above ours. Where the processors are shared by v1 groups, a sandbox of a class has
/// its group there beside ours. Thread-safe.
class CgroupHost {
 public:
  struct State;  ///< for the files of this folder
  /// Looks at the mounts that the calling thread sees. `host_id`: the first 6 characters of the sandbox ids.
  explicit CgroupHost(std::string host_id);
  ~CgroupHost();
  CgroupHost(CgroupHost&&) noexcept;

  const std::vector<CgroupHierarchy>& hierarchies() const;
  /// Throws Error (Failed) naming the first limit that cannot be enforced here, and why. Makes the parent groups.
  void check(const Limits& limits) const;
  /// Whether sandboxes of the class get its weight from their groups; if not, Batch is left to the scheduler's policy.
  bool weighs_processors(CpuClass cpu_class) const;
  /// Whether sandboxes can have a v2 group; if not, `why` says so.
  bool has_lifecycle(std::string* why = nullptr) const;
  /// A v2 group without limits beside those of the sandboxes, for the processes that guard them: they outlive what
  /// the session or service that started dsec allows. Throws Error without v2.
  UniqueFd keepers_group() const;
  /// Removes our parent groups where nobody is left in them, and no other process is about to make a sandbox; for who
  /// cleans up, since to make and remove them costs as much as a sandbox's own. Descriptors that SandboxCgroups gave
  /// out stay valid only in groups that are still there. `patience`: for processes that were told to end, and have not
  /// begun to; those that have are waited for.
  void remove_unused_parents(std::chrono::milliseconds patience = {}) const;

 private:
  friend class SandboxCgroups;
  std::unique_ptr<State> state_;
};

struct CgroupStats {
  std::uint64_t memory_bytes = 0;  ///< charged to the group; without one the anonymous memory of its processes
  std::optional<std::uint64_t> memory_peak;  ///< empty where no memory group counts it
  std::uint64_t cpu_usec = 0;
  std::uint64_t pids = 0;                  ///< tasks with a pids group, else processes
  std::optional<std::uint64_t> oom_kills;  ///< empty where no memory group counts them
};

/// The groups of one sandbox: one in v2 and, on hosts with v1 controllers, one for each limit that was asked for. The
/// directories outlive the object.
class SandboxCgroups {
 public:
  struct Group {
    bool v2 = false;
    bool weighs = false;                   ///< its weight is the sandbox's class
    std::vector<std::string> controllers;  ///< of ours that it limits or counts: "cpu", "memory", "pids"
    UniqueFd parent;                       ///< directory that contains it; as long as it is open, that stays
    UniqueFd directory;
  };

  /// Makes the groups and sets the limits; removes them again when that fails. Those of Batch are not idle yet. Throws
  /// Error.
  static SandboxCgroups create(const CgroupHost& host, const std::string& id, const Limits& limits);
  /// Those that exist.
  static SandboxCgroups open(const CgroupHost& host, const std::string& id);
  /// Whether change() to these limits makes other groups (v1): then nothing inside may run meanwhile.
  static bool moves(const CgroupHost& host, const std::string& id, const Limits& to);
  /// Changes the limits of a sandbox that lives. Memory that is in use above a lower limit is given back first; if it
  /// cannot be, or anything else fails, nothing is changed and Error thrown. `announce` is called with the groups that
  /// new processes have to join when these are others than before.
  static void change(const CgroupHost& host, const std::string& id, const Limits& from, const Limits& to,
                     const std::function<void(const SandboxCgroups&)>& announce);
  /// Kills what lives in the sandbox's groups and removes them; idempotent. Throws Error when something stays.
  static void remove(const CgroupHost& host, const std::string& id, std::chrono::milliseconds timeout);

  const std::string& name() const noexcept { return id_; }
  /// From now on it gets what others leave; while it was made it did not have to wait for that.
  void begin_idle() const;
  /// v2 first, if there is one.
  const std::vector<Group>& groups() const noexcept { return groups_; }
  /// Directory descriptor for CLONE_INTO_CGROUP; -1 without v2.
  int v2() const noexcept;
  /// Memory group that counts out-of-memory kills; null when there is none.
  const Group* memory() const noexcept;
  /// The file that counts out-of-memory kills ("oom_kill N"), for reading again and again; none without memory group.
  UniqueFd oom_counter() const;
  /// The v1 groups' files of tasks, opened for writing: a new process of the sandbox, which has one thread, writes "0"
  /// to each of them. (To move whole processes by cgroup.procs, the kernel stops every fork and exit of the host
  /// first.)
  std::vector<UniqueFd> join_descriptors() const;
  /// A group below the v2 one for the processes of one command, so that they can be killed as one. `name` is a file
  /// name.
  UniqueFd make_subgroup(const std::string& name) const;
  void remove_subgroup(const std::string& name, std::chrono::milliseconds timeout) const;

  void freeze(bool frozen) const;
  CgroupStats stats() const;

 private:
  explicit SandboxCgroups(std::string id) : id_(std::move(id)) {}
  std::string id_;
  std::vector<Group> groups_;
};

}  // namespace dsec::runners
