#include "runners/guest/setup.h"

#include <asm/signal.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/poll.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>

#include "runners/guest/machine_memory.h"
#include "runners/guest/sys.h"

// Isolation steps, in the order in which they happen; each failure ends the sandbox.

namespace dsec::guest {
namespace {

constexpr int kAtEmptyPath = 0x1000, kHere = -100 /* AT_FDCWD */;
constexpr unsigned kLastCapability = 63;

// PID 1 on its way and its keeper share all memory and, until PID 1 has its root, their descriptors.
struct Setup {
  alignas(16) char inner_stack[16384];  ///< with its hot end beside the rest
  const Config* config;
  int alive, keeper;  ///< a pipe's reading end; a pidfd
  int init_pidfd;     ///< of the sandbox that gets its late mounts
  int outer_pid, init_pid;
  int memory_requests;  ///< of a machine whose memory is given; -1: none
  uint32_t root;        ///< a futex: Root
  Failure failure;
  alignas(16) char outer_stack[4096];
};
enum Root : uint32_t { kAwaited, kGiven, kNeverComes };
Setup setup;

int fail(const char* step, const char* object, long result) { return setup.failure.set(step, object, result); }

// Only PID 1 on its way uses them, and nobody else runs meanwhile.
char wanted_path[4096], prefix[4096], link_target[4096];

// Makes the last component of `prefix`, whose parent is there: 0, a negative errno, or 1 when it is a link to what is
// not there; then wanted_path begins with what it points to.
long make_component(int root, size_t length, bool last, wire::MountKind kind) {
  size_t slash = length;
  while (slash > 0 && prefix[slash] != '/') --slash;
  const char* const name = prefix + slash + 1;
  if (slash == length || !*name) return 0;
  prefix[slash] = '\0';
  const long parent = open_in_root(root, slash ? prefix : "/", O_PATH | O_DIRECTORY);
  prefix[slash] = '/';
  if (parent < 0) return parent;
  const int directory = static_cast<int>(parent);
  long made = 0;
  if (!last || kind != wire::MountKind::File) {
    made = sys(__NR_mkdirat, directory, name, 0755);
  } else {
    made = open_at(directory, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (made >= 0) close_fd(static_cast<int>(made));
  }
  long size = made == -EEXIST ? sys(__NR_readlinkat, directory, name, link_target, sizeof link_target - 1) : -1;
  close_fd(directory);
  if (made < 0 && made != -EEXIST) return made;
  if (size <= 0) return 0;
  const long there = open_in_root(root, prefix, O_PATH);
  if (there >= 0) close_fd(static_cast<int>(there));
  if (there != -ENOENT) return there < 0 ? there : 0;
  const size_t link = static_cast<size_t>(size), base = link_target[0] == '/' ? 0 : slash + 1;
  const size_t rest = strlen(wanted_path + length) + 1;
  if (base + link + rest > sizeof wanted_path) return -ENAMETOOLONG;
  memmove(wanted_path + base + link, wanted_path + length, rest);
  memcpy(wanted_path + base, link_target, link);
  return 1;
}

// The directory or file `path` of the new root, made with its parents when it is missing; an fd or a negative errno.
// Every lookup stays below the root: the image decides what lies there, and where its links lead.
long open_target(int root, const char* path, wire::MountKind kind) {
  const long found = open_in_root(root, path, O_PATH | (kind == wire::MountKind::Place ? O_DIRECTORY | O_NOFOLLOW : 0));
  if (found != -ENOENT || kind == wire::MountKind::Optional || kind == wire::MountKind::Place) return found;
  if (strlen(path) >= sizeof wanted_path) return -ENAMETOOLONG;
  memcpy(wanted_path, path, strlen(path) + 1);
  for (int links = 0; links < 8; ++links) {
    long done = 0;
    for (size_t at = 1; done == 0; ++at) {
      if (wanted_path[at] && wanted_path[at] != '/') continue;
      memcpy(prefix, wanted_path, at);
      prefix[at] = '\0';
      done = make_component(root, at, wanted_path[at] == '\0', kind);
      if (!wanted_path[at]) break;
    }
    if (done < 0) return done;
    if (done == 0) return open_in_root(root, wanted_path, O_PATH);
  }
  return -ELOOP;
}

long attach(int mount, int target) {
  return sys(__NR_move_mount, mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

struct Option {
  const char* key;
  const char* value;
};

// A filesystem of the sandbox's own.
struct NewMount {
  const char* type;
  const char* target;  ///< a directory of the root that must not be a symlink
  unsigned attributes;
  const Option* options;
};

// `made`: its descriptor, once there is one; 0 before.
int make_mount(const NewMount& wanted, int& made) {
  const long context = sys(__NR_fsopen, wanted.type, FSOPEN_CLOEXEC);
  if (context < 0) return fail("fsopen", wanted.type, context);
  for (const Option* option = wanted.options; option && option->key; ++option) {
    const long set = sys(__NR_fsconfig, context, FSCONFIG_SET_STRING, option->key, option->value, 0);
    if (set < 0) return fail("set an option of", wanted.type, set);
  }
  const long done = sys(__NR_fsconfig, context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
  if (done < 0) return fail("create", wanted.type, done);
  const long mount = sys(__NR_fsmount, context, FSMOUNT_CLOEXEC, wanted.attributes);
  if (mount < 0) return fail("fsmount", wanted.type, mount);
  close_fd(static_cast<int>(context));
  made = static_cast<int>(mount);
  return 0;
}

int attach_new(int root, const NewMount& wanted, int made) {
  const long place = open_in_root(root, wanted.target, O_PATH | O_DIRECTORY | O_NOFOLLOW);
  if (place < 0) return fail("open the mount point", wanted.target, place);
  const long done = attach(made, static_cast<int>(place));
  if (done < 0) return fail("attach", wanted.type, done);
  close_fd(made);
  close_fd(static_cast<int>(place));
  return 0;
}

int join_limits(const Config& config) {
  for (uint32_t i = 0; i < config.limit_count; ++i) {
    const long joined = write_fd(config.limits[i].tasks, "0", 1);
    if (joined < 0) return fail("join the cgroup of a limit", config.limits[i].name.data, joined);
  }
  return 0;
}

// The source of what hides a path is our own /dev/null, or the empty directory of the namespace we came from. Which of
// them fits is known beforehand: to give up a copy that does not, the kernel waits until nobody can look at it any
// more.
int hide_paths(const Config& config) {
  constexpr unsigned long kBind = 4096;
  for (uint32_t i = 0; i < config.masked.count; ++i) {
    const char* const path = config.masked.items[i] + 1;
    const bool directory = path[strlen(path) - 1] == '/';
    long hidden = sys(__NR_mount, directory ? "/empty" : "dev/null", path, nullptr, kBind, nullptr);
    // On this kernel it is something else.
    if (hidden == -ENOTDIR && !directory) hidden = sys(__NR_mount, "/empty", path, nullptr, kBind, nullptr);
    if (hidden < 0 && hidden != -ENOENT) return fail("mask", config.masked.items[i], hidden);
  }
  for (uint32_t i = 0; i < config.read_only.count; ++i) {
    const char* const path = config.read_only.items[i] + 1;
    long bound = sys(__NR_mount, path, path, nullptr, 4096 | 16384 /* MS_REC */, nullptr);
    if (bound == -ENOENT) continue;
    // MS_BIND | MS_REMOUNT | MS_RDONLY with nosuid, nodev, noexec, which /proc has and must not lose.
    if (bound >= 0) bound = sys(__NR_mount, nullptr, path, nullptr, 4096 | 32 | 1 | 2 | 4 | 8, nullptr);
    if (bound < 0) return fail("make read-only", config.read_only.items[i], bound);
  }
  return 0;
}

constexpr unsigned kQuiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
constexpr Option kPts[] = {{"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", "5"}, {nullptr, nullptr}};
constexpr Option kShm[] = {{"mode", "1777"}, {"size", "64m"}, {nullptr, nullptr}};
constexpr NewMount kNewMounts[] = {
    {"proc", "/proc", kQuiet, nullptr},
    {"mqueue", "/dev/mqueue", kQuiet, nullptr},
    {"devpts", "/dev/pts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, kPts},
    {"tmpfs", "/dev/shm", kQuiet, kShm},
};
constexpr unsigned kNewMountCount = sizeof kNewMounts / sizeof kNewMounts[0];
// From here on they are for commands only. For every filesystem of the host the kernel keeps some memory in every
// memory group, so a sandbox that waits for its first command does without.
constexpr unsigned kFirstOfCommands = 2;
int made_mounts[kNewMountCount];

unsigned mounts_at_start(const Config& config) {
  return config.flags & wire::kStartLater ? kFirstOfCommands : kNewMountCount;
}

// On top of what is attached there already.
long attach_in_place_of_root(int mount) {
  const long place = open_at(-100, "/root", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (place < 0) return place;
  const long done = attach(mount, static_cast<int>(place));
  close_fd(static_cast<int>(place));
  return done;
}

// What the root was stacked from goes below it, and so with the old root: each mount that ends alone makes its last
// user wait until nobody can look at it any more. Where it cannot be attached (its overlay was made by names) it ends
// so.
void put_away_spent_mounts(const Config& config) {
  for (uint32_t i = 0; i < config.mount_count; ++i)
    if (config.mounts[i].kind == wire::MountKind::Spent) attach_in_place_of_root(config.mounts[i].fd);
}

// Mounts a file of the memory that the namespace for keepers has for them (guest_place.cc). It has no name any more
// then (the kernel attaches none that never had one), and goes with its mount. Root of the sandbox owns it and may
// write it, which counts as the sandbox's memory.
long attach_content(const Text& id, const Text& content, int target) {
  // One at a time.
  const long memory = open_at(-100, "/files", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (memory < 0) return memory;
  const int files = static_cast<int>(memory);
  const long opened = open_at(files, id.data, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  long done = opened;
  if (opened >= 0) {
    const int file = static_cast<int>(opened);
    const long wrote = write_fd(file, content.data, content.size);
    done = wrote == static_cast<long>(content.size) ? 0 : wrote < 0 ? wrote : -ENOSPC;
    if (done == 0) done = sys(__NR_open_tree, file, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | kAtEmptyPath);
    close_fd(file);
    if (done >= 0) {
      const int mount = static_cast<int>(done);
      done = attach(mount, target);
      close_fd(mount);
    }
    sys(__NR_unlinkat, files, id.data, 0);
  }
  close_fd(files);
  return done;
}

int build_root(const Config& config) {
  put_away_spent_mounts(config);
  long done = attach_in_place_of_root(config.root_fd);
  if (done < 0) return fail("attach the root", "/root", done);
  // The descriptor names the mount wherever it is attached.
  const int root = config.root_fd;
  for (uint32_t i = 0; i < config.mount_count; ++i) {
    const PreparedMount& mount = config.mounts[i];
    if (mount.kind == wire::MountKind::Spent) continue;
    const long target = open_target(root, mount.target.data, mount.kind);
    if (target == -ENOENT && mount.kind == wire::MountKind::Optional) continue;
    if (target < 0) return fail("open the mount point", mount.target.data, target);
    done = mount.fd >= 0 ? attach(mount.fd, static_cast<int>(target))
                         : attach_content(config.id, mount.content, static_cast<int>(target));
    close_fd(static_cast<int>(target));
    if (done < 0) return fail("attach", mount.target.data, done);
  }
  for (unsigned i = 0; i < mounts_at_start(config); ++i)
    if (attach_new(root, kNewMounts[i], made_mounts[i])) return 1;
  done = sys(__NR_fchdir, root);
  if (done < 0) return fail("enter", "the root", done);
  if (hide_paths(config)) return 1;
  // What is prepared comes from a more privileged namespace and is locked, so that nothing below can be uncovered.
  done = sys(__NR_pivot_root, ".", ".");
  if (done < 0) return fail("pivot_root", "the root", done);
  done = sys(__NR_umount2, ".", 2 /* MNT_DETACH */);
  if (done < 0) return fail("leave", "the old root", done);
  done = sys(__NR_chdir, "/");
  return done < 0 ? fail("enter", "/", done) : 0;
}

// Whether the keeper still lives, without which nobody would ever end us.
bool follow_keeper() {
  sys(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // It may have died before that.
  pollfd ended = {setup.keeper, POLLIN, 0};
  const struct { long seconds, nanoseconds; } at_once = {};
  return sys(__NR_ppoll, &ended, 1, &at_once, nullptr, 8) == 0;
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

// All that dsec-init does as PID 1, and its exec. A filter costs each sandbox time and memory by its length, and that
// of commands, whose programs nobody knows, is twenty times as long.
constexpr uint32_t kInitCalls[] = {__NR_execveat, __NR_getpid, __NR_prctl, __NR_rt_sigprocmask,  __NR_poll,
                                   __NR_close,    __NR_wait4,  __NR_kill,  __NR_rt_sigtimedwait, __NR_exit_group};

long install_init_filter() {
  constexpr unsigned kCalls = sizeof kInitCalls / sizeof kInitCalls[0], kRefuse = 3 + kCalls;
  sock_filter program[kRefuse + 2] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, arch)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, kRefuse - 2, kArchitecture},
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
  };
  for (unsigned i = 0; i < kCalls; ++i)
    program[3 + i] = {BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint8_t>(kCalls - i), 0, kInitCalls[i]};
  program[kRefuse] = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS};
  program[kRefuse + 1] = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
  const sock_fprog filter = {sizeof program / sizeof program[0], program};
  return sys(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
}

// False when there will be none. Then descriptors are our own.
bool await_root() {
  uint32_t root;
  while ((root = __atomic_load_n(&setup.root, __ATOMIC_ACQUIRE)) == kAwaited)
    sys(__NR_futex, &setup.root, 128 /* FUTEX_WAIT_PRIVATE */, kAwaited, nullptr, nullptr, 0);
  return root == kGiven;
}

// Who dies with the keeper as PID 1 of containers does, since follow_keeper(): what a VMM executes changes no ids.
int execute_machine(const Config& config) {
  if (config.machine_error_fd >= 0) {
    const long heard = sys(__NR_dup3, config.machine_error_fd, 2, 0);
    if (heard < 0) return fail("pass a descriptor", "", heard);
  }
  for (int fd = 0; config.flags & wire::kStartConsole && fd < 2; ++fd) {
    const long given = sys(__NR_dup3, config.console_fd, fd, 0);
    if (given < 0) return fail("pass a descriptor", "", given);
  }
  sys(__NR_close_range, 3, ~0u, 0);
  const uint64_t none = 0;
  sys(__NR_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);
  static char* const kEnvironment[] = {const_cast<char*>("PATH=/usr/bin:/bin"), const_cast<char*>("LC_ALL=C.UTF-8"),
                                       nullptr};
  const long done = sys(__NR_execve, config.machine.items[0], config.machine.items, kEnvironment);
  return fail("execute", config.machine.items[0], done);
}

// PID 1 before its exec, inside all namespaces but the old root.
int run_init(void*) {
  const Config& config = *setup.config;
  if (!follow_keeper()) return 1;
  // What needs no root, while dsec prepares it.
  long done = sys(__NR_sethostname, config.hostname.data, config.hostname.size);
  if (done < 0) return fail("set the hostname", config.hostname.data, done);
  for (unsigned i = 0; i < mounts_at_start(config); ++i)
    if (make_mount(kNewMounts[i], made_mounts[i])) return 1;
  sys(__NR_setsid);
  sys(__NR_umask, 022);
  // To pass on signals; a VMM passes on none.
  const uint64_t kept = config.is_machine() ? 0 : uint64_t{1} << CAP_KILL;
  done = sys(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (done < 0) return fail("set no_new_privs", "", done);
  if (!drop_bounding(kept, setup.failure)) return 1;
  if (config.machine_memory_fd >= 0) {
    // The keeper answers, whose descriptors these still are.
    done = install_memory_filter();
    if (done < 0) return fail("install the system call filter of", "the machine's memory", done);
    setup.memory_requests = static_cast<int>(done);
  }

  if (!await_root()) return 1;
  if (config.network_fd >= 0) {
    done = sys(__NR_setns, config.network_fd, CLONE_NEWNET);
    if (done < 0) return fail("join the network namespace", "", done);
  }
  done = sys(__NR_unshare, CLONE_FILES);
  if (done < 0) return fail("separate the descriptors of", "PID 1", done);
  if (build_root(config)) return 1;
  if (!limit_capabilities(kept, setup.failure)) return 1;
  if (config.is_machine()) return install_filter(config, setup.failure) ? execute_machine(config) : 1;
  done = sys(__NR_dup3, setup.alive, 3, 0);
  if (done < 0 && setup.alive != 3) return fail("pass a descriptor", "", done);
  const long program = sys(__NR_dup3, config.program_fd, 4, O_CLOEXEC);
  if (program < 0) return fail("pass a descriptor", "", program);
  sys(__NR_close_range, 5, ~0u, 0);
  static char* const kArguments[] = {const_cast<char*>("dsec-init"), const_cast<char*>("init"), nullptr};
  static char* const kNothing[] = {nullptr};
  done = install_init_filter();
  if (done < 0) return fail("install the system call filter of", "PID 1", done);
  done = sys(__NR_execveat, 4, "", kArguments, kNothing, kAtEmptyPath);
  return fail("execute", "dsec-init", done);
}

// Of the user namespace that was joined: who is not mapped could not own what it makes.
int become_root() {
  sys(__NR_setgroups, 0, nullptr);
  long changed = sys(__NR_setresgid, 0, 0, 0);
  if (changed >= 0) changed = sys(__NR_setresuid, 0, 0, 0);
  return changed < 0 ? fail("become root of the user namespace", "", changed) : 0;
}

// Nothing of the user's runs yet that could meet it, and it is in none of the sandbox's cgroups, which may be frozen.
int run_late_mounts(void*) {
  const Config& config = *setup.config;
  const bool own_users = config.flags & wire::kStartUserNamespace;
  const long joined = sys(__NR_setns, setup.init_pidfd, CLONE_NEWNS | (own_users ? CLONE_NEWUSER : 0));
  if (joined < 0) return fail("join the sandbox", "", joined);
  if (own_users && become_root()) return 1;
  for (unsigned i = kFirstOfCommands; i < kNewMountCount; ++i)
    if (make_mount(kNewMounts[i], made_mounts[i]) || attach_new(kHere, kNewMounts[i], made_mounts[i])) return 1;
  return 0;
}

// In the sandbox's cgroups, which only root of the host may clone into; then in the user namespace that the others
// shall belong to. The cgroup namespace shows what is below the cgroups that we are in.
int enter_user_namespace(void*) {
  const Config& config = *setup.config;
  if (join_limits(config)) return 1;
  if (config.user_namespace_fd >= 0) {
    const long joined = sys(__NR_setns, config.user_namespace_fd, CLONE_NEWUSER);
    if (joined < 0) return fail("join the user namespace", "", joined);
    if (become_root()) return 1;
  }
  clone_args args = {};
  // The network namespace comes with the root: it takes as long as all of these, and is made beside us.
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_PARENT | CLONE_FILES | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC |
               CLONE_NEWUTS | CLONE_NEWCGROUP;
  const long pid = clone_on_stack(args, setup.inner_stack, sizeof setup.inner_stack, run_init, nullptr);
  if (pid < 0) return fail("clone PID 1 into its namespaces", "", pid);
  setup.init_pid = static_cast<int>(pid);
  return 0;
}

}  // namespace

bool drop_bounding(uint64_t keep, Failure& failure) {
  for (unsigned capability = 0; capability <= kLastCapability; ++capability) {
    if (keep >> capability & 1) continue;
    const long dropped = sys(__NR_prctl, PR_CAPBSET_DROP, capability, 0, 0, 0);
    if (dropped == -EINVAL) break;  // this kernel has no more
    if (dropped < 0) return failure.set("drop a capability", "", dropped), false;
  }
  return true;
}

bool limit_capabilities(uint64_t keep, Failure& failure) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct now[2] = {}, sets[2] = {};
  long done = sys(__NR_capget, &header, now);
  for (unsigned half = 0; half < 2; ++half) {
    // Never more than there is: `keep` may name what this kernel or dsec itself does not have.
    sets[half].effective = sets[half].permitted = now[half].permitted & static_cast<uint32_t>(keep >> 32 * half);
  }
  if (done >= 0) done = sys(__NR_capset, &header, sets);
  if (done >= 0) done = sys(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (done < 0) return failure.set("set the capabilities", "", done), false;
  return true;
}

bool install_filter(const Config& config, Failure& failure) {
  const long done = sys(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &config.filter);
  if (done < 0) return failure.set("install the system call filter", "", done), false;
  return true;
}

bool begin_init(const Config& config, int alive, int keeper, Failure& failure) {
  setup.config = &config;
  setup.memory_requests = -1;
  setup.alive = alive;
  setup.keeper = keeper;
  clone_args args = {};
  args.flags = CLONE_VM | CLONE_FILES | CLONE_INTO_CGROUP;
  args.cgroup = static_cast<uint64_t>(config.cgroup_fd);
  args.exit_signal = SIGCHLD;
  const long outer = clone_on_stack(args, setup.outer_stack, sizeof setup.outer_stack, enter_user_namespace, nullptr);
  if (outer < 0) {
    failure.set("clone", "", outer);
    return false;
  }
  setup.outer_pid = static_cast<int>(outer);
  return true;
}

int finish_init(bool with_root, Failure& failure) {
  __atomic_store_n(&setup.root, with_root ? kGiven : kNeverComes, __ATOMIC_RELEASE);
  sys(__NR_futex, &setup.root, 129 /* FUTEX_WAKE_PRIVATE */, 1, nullptr, nullptr, 0);
  // It waits for PID 1's exec.
  sys(__NR_wait4, setup.outer_pid, nullptr, 0, nullptr);
  // PID 1 has closed its copies; ours would keep the sandbox's filesystems from ending with it.
  for (const int made : made_mounts)
    if (made) close_fd(made);
  if (with_root && !setup.failure.failed()) {
    if (setup.memory_requests >= 0) watch_memory_requests(setup.memory_requests);
    return setup.init_pid;
  }
  if (setup.init_pid > 0) sys(__NR_wait4, setup.init_pid, nullptr, 0, nullptr);
  if (with_root) failure = setup.failure;
  return -1;
}

bool add_late_mounts(const Config& config, int init_pidfd, Failure& failure) {
  setup.config = &config;
  setup.init_pidfd = init_pidfd;
  setup.failure = {};
  clone_args args = {};
  // Its descriptors are copies, and go with it.
  args.flags = CLONE_VM | CLONE_VFORK;
  args.exit_signal = SIGCHLD;
  const long pid = clone_on_stack(args, setup.inner_stack, sizeof setup.inner_stack, run_late_mounts, nullptr);
  if (pid < 0) return failure.set("clone", "", pid), false;
  int status = 0;
  sys(__NR_wait4, pid, &status, 0, nullptr);
  failure = setup.failure;
  if (status != 0 && !failure.failed()) failure.set("mount what commands use", "", -EINTR);
  return !failure.failed();
}

}  // namespace dsec::guest
