#include "runners/guest/enter.h"

#include <asm/ioctls.h>
#include <asm/signal.h>
#include <linux/prctl.h>
#include <linux/securebits.h>

#include "runners/guest/setup.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

int fail(Entry& entry, const char* step, const char* object, long result) {
  return entry.failure.set(step, object, result);
}

// Who is started after this is the OOM killer's first choice; the keeper, PID 1 and the host are not.
int prefer_for_oom(const Config& config) {
  const long fd = open_at(-100, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return static_cast<int>(fd);
  const long written = write_fd(static_cast<int>(fd), config.oom_score.data, config.oom_score.size);
  close_fd(static_cast<int>(fd));
  return written < 0 ? static_cast<int>(written) : 0;
}

// mkdir -p, as root of the sandbox, below its root.
void make_directories(const char* path) {
  char part[4096];
  const size_t length = strlen(path);
  if (length >= sizeof part) return;
  for (size_t at = 1; at <= length; ++at) {
    if (at < length && path[at] != '/') continue;
    memcpy(part, path, at);
    part[at] = '\0';
    sys(__NR_mkdirat, -100, part, 0755);
  }
}

int become_user(Entry& entry) {
  const User& user = entry.user;
  long done = sys(__NR_setgroups, user.group_count, user.groups);
  if (done < 0) return fail(entry, "set the groups of", user.name, done);
  done = sys(__NR_setresgid, user.gid, user.gid, user.gid);
  if (done < 0) return fail(entry, "set the group of", user.name, done);
  done = sys(__NR_setresuid, user.uid, user.uid, user.uid);
  return done < 0 ? fail(entry, "become user", user.name, done) : 0;
}

// Like execvp(3), in the sandbox's PATH. Returns only when it failed.
int execute(Entry& entry) {
  const char* const name = entry.argv[0];
  for (const char* at = name; *at; ++at) {
    if (*at != '/') continue;
    const long result = sys(__NR_execve, name, entry.argv, entry.env);
    entry.not_found = result == -ENOENT;
    return fail(entry, "execute", name, result);
  }
  const size_t length = strlen(name);
  long worst = -ENOENT;
  char candidate[4096];
  for (const char* at = entry.path; *name; ++at) {
    const char* end = at;
    while (*end && *end != ':') ++end;
    const size_t size = static_cast<size_t>(end - at);
    if (size + length + 3 < sizeof candidate) {
      memcpy(candidate, size ? at : ".", size ? size : 1);
      const size_t used = size ? size : 1;
      candidate[used] = '/';
      memcpy(candidate + used + 1, name, length + 1);
      const long result = sys(__NR_execve, candidate, entry.argv, entry.env);
      // What lies there but cannot be run is told only when nothing later can be.
      if (result != -ENOENT && result != -ENOTDIR) worst = result;
    }
    if (!*end) break;
    at = end;
  }
  entry.not_found = worst == -ENOENT;
  return fail(entry, "execute", name, worst);
}

// What a session's shell is given beyond its streams; the limits, which may lie there, are joined by now. By way of
// high numbers: one may lie where the other goes.
long place_session(unsigned at) {
  constexpr int kPlace = 8, kControl = 9;
  const long place = sys(__NR_fcntl, at, F_DUPFD_CLOEXEC, 32), control = sys(__NR_fcntl, at + 1, F_DUPFD_CLOEXEC, 32);
  if (place < 0 || control < 0) return place < 0 ? place : control;
  const long done = sys(__NR_dup3, place, kPlace, 0);
  return done < 0 ? done : sys(__NR_dup3, control, kControl, 0);
}

// The command itself: in the sandbox's pid namespace already, in all others still the keeper's twin.
int run_command(void* argument) {
  Entry& entry = *static_cast<Entry*>(argument);
  const Config& config = *entry.config;

  // Descriptors first: once inside, nothing of the keeper's may be open. 3 is the way in, 4… are the limits.
  constexpr unsigned kFirstLimit = 4;
  int given[kFirstLimit + kMaxLimitCgroups + 4] = {entry.input, entry.output, entry.error, entry.init_pidfd};
  unsigned count = kFirstLimit;
  for (uint32_t i = 0; i < config.limit_count; ++i) given[count++] = config.limits[i].tasks;
  if (entry.late_procs >= 0) given[count++] = entry.late_procs;
  const unsigned limits_end = count;
  const int beyond[] = {entry.place, entry.control, entry.terminal};
  for (const int fd : beyond)
    if (fd >= 0) given[count++] = fd;
  for (unsigned i = 0; i < count; ++i) {
    const long moved = sys(__NR_fcntl, given[i], F_DUPFD_CLOEXEC, 32);
    if (moved < 0) return fail(entry, "pass a descriptor", "", moved);
    given[i] = static_cast<int>(moved);
  }
  for (unsigned i = 0; i < count; ++i) {
    const long placed = sys(__NR_dup3, given[i], i, i < 3 ? 0 : O_CLOEXEC);
    if (placed < 0) return fail(entry, "pass a descriptor", "", placed);
  }
  sys(__NR_close_range, count, ~0u, 0);

  int namespaces = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
  if (config.flags & wire::kStartUserNamespace) namespaces |= CLONE_NEWUSER;
  if (!(config.flags & wire::kStartHostNetwork)) namespaces |= CLONE_NEWNET;
  long done = sys(__NR_setns, 3, namespaces);
  if (done < 0) return fail(entry, "join the sandbox", "", done);
  close_fd(3);

  sys(__NR_setsid);
  if (config.flags & wire::kStartIdlePolicy) {
    const int priority = 0;
    done = sys(__NR_sched_setscheduler, 0, 5 /* SCHED_IDLE */, &priority);
    if (done < 0) return fail(entry, "set the scheduling policy of", "the sandbox", done);
  }
  if (entry.tty || entry.terminal >= 0) {
    done = sys(__NR_ioctl, entry.tty ? 0 : count - 1, TIOCSCTTY, 0);
    if (done < 0) return fail(entry, "take the terminal", "", done);
  }
  sys(__NR_umask, 022);
  const uint64_t none = 0;
  sys(__NR_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);

  // As root of the sandbox: a working directory of the image may be missing, or closed to its user's parents.
  if (config.flags & wire::kStartUserNamespace) {
    sys(__NR_setresgid, 0, 0, 0);
    done = sys(__NR_setresuid, 0, 0, 0);
    if (done < 0) return fail(entry, "become root of the sandbox", "", done);
  }
  if (entry.make_workdir) make_directories(entry.workdir);
  // In a machine that is the sandbox as a whole, sudo and the like do what they do there.
  const long keep_id = config.joins() ? 0 : sys(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (keep_id < 0) return fail(entry, "set no_new_privs", "", keep_id);
  // The identity needs SETUID and SETGID, which the usual set has; both must not depend on that.
  if (!drop_bounding(config.capabilities, entry.failure)) return 1;
  if (become_user(entry)) return 1;
  done = sys(__NR_chdir, entry.workdir);
  if (done < 0) return fail(entry, "enter the working directory", entry.workdir, done);
  for (unsigned i = kFirstLimit; i < limits_end; ++i) {
    done = write_fd(static_cast<int>(i), "0", 1);
    if (done < 0) return fail(entry, "join a control group of", "the sandbox", done);
  }
  if (!limit_capabilities(entry.user.uid == 0 ? config.capabilities : 0, entry.failure)) return 1;
  if (!config.joins() && !install_filter(config, entry.failure)) return 1;
  if (entry.place >= 0 && (done = place_session(limits_end)) < 0) return fail(entry, "pass a descriptor", "", done);
  return execute(entry);
}

// The usher: a child that leads the command in and ends. The command cannot set its own OOM preference: as long as it
// shares the keeper's memory, the kernel sets that of both, except for who was cloned with CLONE_VFORK.
int bring_in(void* argument) {
  Entry& entry = *static_cast<Entry*>(argument);
  if (const int error = prefer_for_oom(*entry.config)) return fail(entry, "set the OOM preference", "", error);
  const long joined = sys(__NR_setns, entry.init_pidfd, CLONE_NEWPID);
  if (joined < 0) return fail(entry, "join the pid namespace", "", joined);
  clone_args args = {};
  // Not CLONE_VFORK: whoever is inside could stop the command on its way. Its exit signal is ours.
  args.flags = CLONE_VM | CLONE_PARENT | CLONE_CHILD_CLEARTID | CLONE_INTO_CGROUP;
  args.child_tid = reinterpret_cast<uint64_t>(&entry.on_its_way);
  args.cgroup = static_cast<uint64_t>(entry.cgroup);
  entry.late_procs = -1;
  entry.on_its_way = 1;
  long pid = clone_on_stack(args, entry.stack, sizeof entry.stack, run_command, &entry);
  if (pid == -EAGAIN) {
    // The sandbox has used up its tasks, which counts for who is cloned into it and not for who joins.
    entry.late_procs = static_cast<int>(open_at(entry.cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    args.flags &= ~uint64_t{CLONE_INTO_CGROUP};
    args.cgroup = 0;
    if (entry.late_procs >= 0) pid = clone_on_stack(args, entry.stack, sizeof entry.stack, run_command, &entry);
    if (entry.late_procs >= 0) close_fd(entry.late_procs);
  }
  if (pid < 0) return fail(entry, "clone into the sandbox", "", pid);
  entry.pid = static_cast<int>(pid);
  return 0;
}

}  // namespace

bool is_on_its_way(const Entry& entry) { return __atomic_load_n(&entry.on_its_way, __ATOMIC_ACQUIRE) != 0; }

bool begin_entry(Entry& entry) {
  clone_args args = {};
  // Nobody inside sees the usher, so nobody can stop it, and us with it.
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_FILES;
  args.exit_signal = SIGCHLD;
  const long usher = clone_on_stack(args, entry.usher_stack, sizeof entry.usher_stack, bring_in, &entry);
  if (usher < 0) return fail(entry, "clone", "", usher), false;
  int status = 0;
  sys(__NR_wait4, usher, &status, 0, nullptr);
  if (status == 0) return true;
  if (!entry.failure.failed()) fail(entry, "bring in", "the command", -EINTR);
  return false;
}

}  // namespace dsec::guest
