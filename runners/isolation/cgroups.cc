#include <fcntl.h>
#include <linux/mount.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/isolation/cgroup_host.h"
#include "runners/isolation/cgroup_ops.h"

namespace dsec::runners {
namespace {

constexpr char kKeepers[] = "keepers";
constexpr std::chrono::milliseconds kExitTimeout{5'000};

/// The v2 hierarchy of a host that does not show it, as a mount that is attached nowhere.
UniqueFd detached_v2() {
  const UniqueFd context(static_cast<int>(::syscall(SYS_fsopen, "cgroup2", FSOPEN_CLOEXEC)));
  if (!context || ::syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return {};
  return UniqueFd(static_cast<int>(::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC,
                                             MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV)));
}

/// What stands before our group's name below each root: "" or "system.slice/dsec.service/".
std::string parent_prefix() {
  const char* wish = std::getenv("DSEC_CGROUP_PARENT");
  if (wish == nullptr || *wish == '\0') return {};
  std::string path = wish;
  while (!path.empty() && path.front() == '/') path.erase(0, 1);
  while (!path.empty() && path.back() == '/') path.pop_back();
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty() || part == "." || part == "..")
      throw usage_error("DSEC_CGROUP_PARENT=" + quote(wish) + " is no path of a control group");
  }
  return path.empty() ? path : path + '/';
}

}  // namespace

std::vector<std::string> words_in(int group, const char* file) {
  char text[1024];
  if (cgroup::read(group, file, text, sizeof text) < 0) return {};
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

UniqueFd open_group(int at, const std::string& name) {
  return UniqueFd(::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

UniqueFd copy_of(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_error("copy a descriptor");
  return copy;
}

/// mkdir of our own group; the ones above it are the administrator's, and must exist.
void CgroupHost::State::make_parent(Hierarchy& hierarchy) {
  const std::string shown_root = hierarchy.root.empty() ? "the cgroup v2 hierarchy" : hierarchy.root;
  if (hierarchy.read_only) {
    hierarchy.unusable = shown_root + " is mounted read-only";
    return;
  }
  const UniqueFd top = open_group(hierarchy.mount.get(), prefix.empty() ? "." : prefix);
  if (!top) {
    hierarchy.unusable = "open " + quote(shown_root + '/' + prefix) + ": " + errno_text(errno);
    return;
  }
  if (hierarchy.of_classes) {
    hierarchy.parent = copy_of(top);
    return;
  }
  if (hierarchy.v2) delegate(hierarchy, top.get(), shown_root + '/' + prefix);
  if (::mkdirat(top.get(), hierarchy.name.c_str(), 0755) != 0 && errno != EEXIST) {
    hierarchy.unusable = "mkdir " + quote(shown_root + '/' + prefix + hierarchy.name) + ": " + errno_text(errno);
    return;
  }
  hierarchy.parent = open_group(top.get(), hierarchy.name);
  if (!hierarchy.parent) {
    hierarchy.unusable = "open " + quote(shown_root + '/' + prefix + hierarchy.name) + ": " + errno_text(errno);
    return;
  }
  // As long as somebody has it open, nobody takes it for unused. Passing the descriptor on passes the lock on.
  // Who has it exclusively may wait for processes to leave; going on does less harm than waiting, too: what is removed
  // meanwhile is made again.
  for (int tries = 0; tries < 100 && ::flock(hierarchy.parent.get(), LOCK_SH | LOCK_NB) != 0; ++tries) ::usleep(1000);
  if (!hierarchy.v2) return;
  for (const char* controller : kOurControllers)
    if (contains(words_in(hierarchy.parent.get(), "cgroup.controllers"), controller))
      cgroup::write(hierarchy.parent.get(), "cgroup.subtree_control", ("+" + std::string(controller)).c_str());
}

/// A controller works in our groups only when each group above enables it for its children. The visible root is the
/// only one that we may have to ask: with a group of the administrator's, that is the administrator's word.
void CgroupHost::State::delegate(Hierarchy& hierarchy, int top, const std::string& top_name) {
  const auto available = words_in(top, "cgroup.controllers"), enabled = words_in(top, "cgroup.subtree_control");
  for (const char* controller : kOurControllers) {
    if (!contains(available, controller) || contains(enabled, controller)) continue;
    const int failed = cgroup::write(top, "cgroup.subtree_control", ("+" + std::string(controller)).c_str());
    if (failed == 0 || !hierarchy.undelegated.empty()) continue;
    hierarchy.undelegated = "enable " + std::string(controller) + " in " + top_name + ": " + errno_text(-failed);
    if (failed == -EBUSY) hierarchy.undelegated += ": processes live in that group itself";
  }
}

/// A new group, also when garbage collection has just removed our empty parent: then that is made again.
int CgroupHost::State::make_group(Hierarchy& hierarchy, const std::string& id) {
  for (int tries = 0;; ++tries) {
    const int parent = parent_of(hierarchy);
    if (parent < 0) return ENODEV;
    if (::mkdirat(parent, id.c_str(), 0755) == 0) return 0;
    if ((errno != ENOENT && errno != ENODEV) || tries == 8) return errno;
    hierarchy.parent.reset();
  }
}

void CgroupHost::State::add_classes() {
  const Hierarchy* cpu = of("cpu");
  if (cpu == nullptr || cpu->v2 || contains(cpu->controllers, "memory") || contains(cpu->controllers, "pids")) return;
  Hierarchy made;
  static_cast<CgroupHierarchy&>(made) = *cpu;
  made.of_classes = true;
  made.mount = open_group(cpu->mount.get(), ".");
  list.push_back(std::move(made));
}

CgroupHost::CgroupHost(std::string host_id) : state_(std::make_unique<State>()) {
  const std::string name = "dsec-" + host_id;
  state_->prefix = parent_prefix();
  for (CgroupHierarchy& found : parse_cgroup_mounts(read_file("/proc/thread-self/mountinfo"))) {
    if (found.v2 && state_->v2() != nullptr) continue;
    const bool useful =
        found.v2 || std::any_of(std::begin(kOurControllers), std::end(kOurControllers), [&](const char* each) {
          return contains(found.controllers, each) && state_->of(each) == nullptr;
        });
    if (!useful) continue;
    State::Hierarchy hierarchy;
    static_cast<CgroupHierarchy&>(hierarchy) = found;
    hierarchy.name = name;
    hierarchy.mount = open_group(AT_FDCWD, found.root);
    if (!hierarchy.mount) continue;
    if (hierarchy.v2) hierarchy.controllers = words_in(hierarchy.mount.get(), "cgroup.controllers");
    state_->list.push_back(std::move(hierarchy));
  }
  if (state_->v2() == nullptr) {
    if (UniqueFd mount = detached_v2()) {
      State::Hierarchy hierarchy;
      hierarchy.v2 = true;
      hierarchy.name = name;
      hierarchy.controllers = words_in(mount.get(), "cgroup.controllers");
      hierarchy.mount = std::move(mount);
      state_->list.push_back(std::move(hierarchy));
    }
  }
  for (const State::Hierarchy& each : state_->list) state_->shown.push_back(each);
  state_->add_classes();
}

CgroupHost::~CgroupHost() = default;
CgroupHost::CgroupHost(CgroupHost&&) noexcept = default;

const std::vector<CgroupHierarchy>& CgroupHost::hierarchies() const { return state_->shown; }

bool CgroupHost::has_lifecycle(std::string* why) const {
  const std::lock_guard lock(state_->mutex);
  State::Hierarchy* v2 = state_->v2();
  if (v2 != nullptr && state_->parent_of(*v2) >= 0) return true;
  if (why != nullptr) *why = v2 == nullptr ? "this process cannot reach the cgroup v2 hierarchy" : v2->unusable;
  return false;
}

void CgroupHost::check(const Limits& limits) const {
  const std::lock_guard lock(state_->mutex);
  const auto need = [&](const char* limit, const char* controller) {
    const auto refuse = [&](const std::string& why) {
      return failure(why)
          .context("cannot enforce the " + std::string(limit) + " limit of the sandbox")
          .hint("dsec doctor, which shows what this host can limit")
          .hint("leave the limit out, if the sandbox may run without");
    };
    State::Hierarchy* hierarchy = state_->of(controller, limits.cpu_class);
    if (hierarchy == nullptr)
      throw refuse("no cgroup hierarchy here has the " + std::string(controller) + " controller");
    const int parent = state_->parent_of(*hierarchy);
    if (parent < 0) throw refuse(hierarchy->unusable);
    if (hierarchy->v2 && !contains(words_in(parent, "cgroup.subtree_control"), controller)) {
      throw refuse(hierarchy->undelegated.empty()
                       ? "the " + std::string(controller) + " controller is not enabled for dsec's group"
                       : hierarchy->undelegated)
          .hint(
              "name a group without processes in DSEC_CGROUP_PARENT, with the controllers enabled in its "
              "cgroup.subtree_control");
    }
  };
  if (limits.cpu_class == CpuClass::Latency) need("class", "cpu");
  if (limits.memory) need("memory", "memory");
  if (limits.cpus) need("cpu", "cpu");
  if (limits.pids) need("pids", "pids");
}

bool CgroupHost::weighs_processors(CpuClass cpu_class) const {
  const std::lock_guard lock(state_->mutex);
  State::Hierarchy* hierarchy = state_->of("cpu", cpu_class);
  if (hierarchy == nullptr || state_->parent_of(*hierarchy) < 0) return false;
  return !hierarchy->v2 || contains(words_in(hierarchy->parent.get(), "cgroup.subtree_control"), "cpu");
}

UniqueFd CgroupHost::keepers_group() const {
  std::string why;
  if (!has_lifecycle(&why)) throw failure(why).context("cannot make the control group of the keepers");
  const std::lock_guard lock(state_->mutex);
  State::Hierarchy& v2 = *state_->v2();
  for (int tries = 0;; ++tries) {
    const int failed = state_->make_group(v2, kKeepers);
    UniqueFd group = failed == 0 || failed == EEXIST ? open_group(v2.parent.get(), kKeepers) : UniqueFd();
    if (group) return group;
    if (tries == 8) throw system_error("make the control group of the keepers", failed);
  }
}

namespace {

/// A group that lists nobody and cannot be removed has processes on their way out, which are waited for in any case:
/// they may have memory and filesystems to give back first.
void remove_keepers_group(int parent, std::chrono::milliseconds patience) {
  const auto begin = std::chrono::steady_clock::now();
  while (::unlinkat(parent, kKeepers, AT_REMOVEDIR) != 0 && errno == EBUSY) {
    const UniqueFd group = open_group(parent, kKeepers);
    const bool all_leave = group && words_in(group.get(), "cgroup.procs").empty();
    if (std::chrono::steady_clock::now() > begin + (all_leave ? kExitTimeout : patience)) return;
    ::usleep(1000);
  }
}

}  // namespace

void CgroupHost::remove_unused_parents(std::chrono::milliseconds patience) const {
  const std::lock_guard lock(state_->mutex);
  for (State::Hierarchy& hierarchy : state_->list) {
    if (hierarchy.of_classes) continue;  // it is the administrator's
    const std::string path = state_->prefix + hierarchy.name;
    // Our own lock may have been passed on with its descriptor; only without it can a new one tell.
    hierarchy.parent.reset();
    const UniqueFd parent = open_group(hierarchy.mount.get(), path);
    if (!parent || ::flock(parent.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (hierarchy.v2) remove_keepers_group(parent.get(), patience);
    // Both fail while somebody is in them, and that is right. The lock ends with the descriptor.
    ::unlinkat(hierarchy.mount.get(), path.c_str(), AT_REMOVEDIR);
  }
}

SandboxCgroups SandboxCgroups::create(const CgroupHost& host, const std::string& id, const Limits& limits) {
  host.check(limits);
  CgroupHost::State& state = *host.state_;
  const std::lock_guard lock(state.mutex);
  SandboxCgroups made(id);
  Limits at_first = limits;
  if (limits.cpu_class == CpuClass::Batch) at_first.cpu_class = CpuClass::Default;
  try {
    for (CgroupHost::State::Hierarchy& hierarchy : state.list) {
      if (!state.wanted(hierarchy, limits)) continue;
      if (state.parent_of(hierarchy) < 0) continue;  // check() has thrown if a limit needs it
      Group group = state.make_limited_group(hierarchy, id, at_first);
      made.groups_.insert(hierarchy.v2 ? made.groups_.begin() : made.groups_.end(), std::move(group));
    }
  } catch (...) {
    for (const auto& hierarchy : state.list)
      if (hierarchy.parent) cgroup::remove(hierarchy.parent.get(), id.c_str(), hierarchy.v2, 1000);
    throw;
  }
  return made;
}

SandboxCgroups SandboxCgroups::open(const CgroupHost& host, const std::string& id) {
  CgroupHost::State& state = *host.state_;
  const std::lock_guard lock(state.mutex);
  SandboxCgroups found(id);
  for (CgroupHost::State::Hierarchy& hierarchy : state.list) {
    const int parent = state.parent_of(hierarchy);
    if (parent < 0) continue;
    Group group{.v2 = hierarchy.v2,
                .weighs = hierarchy.v2 || hierarchy.of_classes,
                .controllers = {},
                .parent = copy_of(hierarchy.parent),
                .directory = open_group(parent, id)};
    if (!group.directory) continue;
    group.controllers = controllers_of(hierarchy, group.directory.get());
    found.groups_.insert(hierarchy.v2 ? found.groups_.begin() : found.groups_.end(), std::move(group));
  }
  return found;
}

void SandboxCgroups::remove(const CgroupHost& host, const std::string& id, std::chrono::milliseconds timeout) {
  CgroupHost::State& state = *host.state_;
  std::vector<std::pair<UniqueFd, bool>> parents;
  {
    const std::lock_guard lock(state.mutex);
    for (CgroupHost::State::Hierarchy& hierarchy : state.list) {
      const std::string path = state.prefix + (hierarchy.of_classes ? "" : hierarchy.name);
      UniqueFd parent = open_group(hierarchy.mount.get(), path.empty() ? "." : path);
      if (!parent) continue;
      // v2 first: it ends the processes, and then the v1 groups are empty.
      parents.emplace(hierarchy.v2 ? parents.begin() : parents.end(), std::move(parent), hierarchy.v2);
    }
  }
  // The usual case: everything has ended already.
  std::erase_if(parents, [&](const auto& each) {
    return ::unlinkat(each.first.get(), id.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
  });
  // What is killed has to run to its end, and would wait for long behind a busy host.
  std::erase_if(parents, [&](const auto& each) {
    const UniqueFd group = open_group(each.first.get(), id);
    if (group) cgroup::write(group.get(), "cpu.idle", "0");
    return !group;
  });
  for (const auto& [parent, v2] : parents) {
    const int failed = cgroup::remove(parent.get(), id.c_str(), v2, static_cast<int>(timeout.count()));
    if (failed != 0) throw system_error("remove the control group " + quote(id), -failed);
  }
}

void SandboxCgroups::begin_idle() const {
  for (const Group& group : groups_)
    if (contains(group.controllers, "cpu"))
      set_class(group.directory.get(), group.v2, CpuClass::Default, CpuClass::Batch);
}

int SandboxCgroups::v2() const noexcept {
  return !groups_.empty() && groups_.front().v2 ? groups_.front().directory.get() : -1;
}

const SandboxCgroups::Group* SandboxCgroups::memory() const noexcept {
  for (const Group& group : groups_)
    if (contains(group.controllers, "memory")) return &group;
  return nullptr;
}

UniqueFd SandboxCgroups::oom_counter() const {
  const Group* group = memory();
  if (group == nullptr) return {};
  const char* file = group->v2 ? "memory.events" : "memory.oom_control";
  return UniqueFd(::openat(group->directory.get(), file, O_RDONLY | O_CLOEXEC));
}

std::vector<UniqueFd> SandboxCgroups::join_descriptors() const {
  std::vector<UniqueFd> result;
  for (const Group& group : groups_) {
    if (group.v2) continue;
    UniqueFd tasks(::openat(group.directory.get(), "tasks", O_WRONLY | O_CLOEXEC));
    if (!tasks) throw system_error("open tasks of the sandbox's " + group.controllers.front() + " group");
    result.push_back(std::move(tasks));
  }
  return result;
}

UniqueFd SandboxCgroups::make_subgroup(const std::string& name) const {
  if (v2() < 0) throw failure("the sandbox has no cgroup v2 group");
  if (::mkdirat(v2(), name.c_str(), 0755) != 0) throw system_error("make the control group " + quote(id_ + '/' + name));
  UniqueFd directory = open_group(v2(), name);
  if (!directory) throw system_error("open the control group " + quote(id_ + '/' + name));
  return directory;
}

void SandboxCgroups::remove_subgroup(const std::string& name, std::chrono::milliseconds timeout) const {
  if (v2() < 0) return;
  const int failed = cgroup::remove(v2(), name.c_str(), true, static_cast<int>(timeout.count()));
  if (failed != 0) throw system_error("remove the control group " + quote(id_ + '/' + name), -failed);
}

void SandboxCgroups::freeze(bool frozen) const {
  if (v2() < 0) throw failure("the sandbox has no cgroup v2 group");
  const int failed = cgroup::freeze(v2(), frozen, 5000);
  if (failed != 0) throw system_error(frozen ? "freeze the sandbox" : "thaw the sandbox", -failed);
}

}  // namespace dsec::runners
