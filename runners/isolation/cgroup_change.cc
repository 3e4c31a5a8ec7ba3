#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "runners/isolation/cgroup_host.h"
#include "runners/isolation/cgroup_ops.h"

// Limits of sandboxes that live. Groups of v2 stay what they are; in v1 a limit that is new, and another class, bring
// groups that the processes have to be moved to.
namespace dsec::runners {
namespace {

constexpr int kDeepest = 8;

void collect_processes(int group, std::set<std::string>& pids, int depth) {
  if (const UniqueFd procs(::openat(group, "cgroup.procs", O_RDONLY | O_CLOEXEC)); procs) {
    std::istringstream words(read_all(procs.get()));
    for (std::string pid; words >> pid;) pids.insert(pid);
  }
  UniqueFd again(::openat(group, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const directory = again ? ::fdopendir(again.release()) : nullptr;
  if (directory == nullptr) return;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || depth == kDeepest) continue;
    if (const UniqueFd child = open_group(group, entry->d_name)) collect_processes(child.get(), pids, depth + 1);
  }
  ::closedir(directory);
}

/// All of the sandbox's, which stand still, so that two rounds find what was being cloned during the first.
void move_processes(int v2, int target) {
  std::set<std::string> moved;
  for (int round = 0; round < 2; ++round) {
    std::set<std::string> all;
    collect_processes(v2, all, 0);
    for (const std::string& pid : all) {
      if (!moved.insert(pid).second) continue;
      const int failed = cgroup::write(target, "cgroup.procs", pid.c_str());
      if (failed != 0 && failed != -ESRCH) throw system_error("move process " + pid + " to another group", -failed);
    }
  }
}

std::uint64_t memory_in_use(const SandboxCgroups::Group& group) {
  const std::int64_t bytes =
      cgroup::number(group.directory.get(), group.v2 ? "memory.current" : "memory.usage_in_bytes");
  return bytes < 0 ? 0 : static_cast<std::uint64_t>(bytes);
}

/// Gives back what is in use above the limit. The kernel would kill for it (v2).
void make_room(const SandboxCgroups::Group& group, std::uint64_t limit) {
  constexpr int kRounds = 8;
  constexpr std::uint64_t kSlack = 1 << 20;  // what is charged in batches meanwhile
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t used = memory_in_use(group);
    if (used <= limit) return;
    if (group.v2)
      cgroup::write(group.directory.get(), "memory.reclaim", std::to_string(used - limit + kSlack).c_str());
    else
      cgroup::write(group.directory.get(), "memory.limit_in_bytes", std::to_string(limit).c_str());
  }
  const std::uint64_t used = memory_in_use(group);
  if (used <= limit) return;
  throw usage_error("it uses " + format_size(used) + ", more than the new limit of " + format_size(limit) +
                    ", and what it uses cannot be given back")
      .hint("a limit above " + format_size(used))
      .hint("end what uses the memory first");
}

struct Member {
  CgroupHost::State::Hierarchy* hierarchy = nullptr;
  SandboxCgroups::Group group;
  bool made = false, leaves = false;
};

}  // namespace

UniqueFd CgroupHost::State::open_sandbox(Hierarchy& hierarchy, const std::string& id) {
  const int parent = parent_of(hierarchy);
  return parent < 0 ? UniqueFd() : open_group(parent, id);
}

bool CgroupHost::State::wanted_after_change(Hierarchy& hierarchy, const std::string& id, const Limits& limits) {
  if (wanted(hierarchy, limits)) return true;
  const Hierarchy* const cpu = of("cpu", limits.cpu_class);
  if (hierarchy.v2 || cpu == nullptr || !contains(hierarchy.controllers, "cpu"))
    return static_cast<bool>(open_sandbox(hierarchy, id));
  // Of one that has a group for its processor time, wherever, that is now the class's.
  if (&hierarchy != cpu) return false;
  return std::any_of(list.begin(), list.end(), [&](Hierarchy& each) {
    return !each.v2 && contains(each.controllers, "cpu") && open_sandbox(each, id);
  });
}

bool SandboxCgroups::moves(const CgroupHost& host, const std::string& id, const Limits& to) {
  CgroupHost::State& state = *host.state_;
  const std::lock_guard lock(state.mutex);
  return std::any_of(state.list.begin(), state.list.end(), [&](auto& hierarchy) {
    return !hierarchy.v2 && state.wanted_after_change(hierarchy, id, to) && !state.open_sandbox(hierarchy, id);
  });
}

void SandboxCgroups::change(const CgroupHost& host, const std::string& id, const Limits& from, const Limits& to,
                            const std::function<void(const SandboxCgroups&)>& announce) {
  host.check(to);
  CgroupHost::State& state = *host.state_;
  const std::lock_guard lock(state.mutex);
  std::vector<Member> members;
  for (CgroupHost::State::Hierarchy& hierarchy : state.list) {
    const bool stays = state.wanted_after_change(hierarchy, id, to);
    UniqueFd directory = state.open_sandbox(hierarchy, id);
    if (!directory && hierarchy.v2) continue;
    if (!directory && stays && contains(hierarchy.controllers, "memory") && to.memory)
      throw usage_error(
          "the sandbox was made without a memory limit, and this host (cgroup v1) would not count what it uses "
          "already")
          .hint("make it with a --memory, which can be changed later");
    if (!directory && !stays) continue;
    Member member{.hierarchy = &hierarchy, .group = {}, .made = !directory, .leaves = !stays};
    member.group = {.v2 = hierarchy.v2,
                    .weighs = hierarchy.v2 || hierarchy.of_classes,
                    .controllers = directory ? controllers_of(hierarchy, directory.get()) : std::vector<std::string>{},
                    .parent = {},
                    .directory = std::move(directory)};
    members.insert(hierarchy.v2 ? members.begin() : members.end(), std::move(member));
  }
  if (members.empty() || !members.front().group.v2) throw failure("its control groups are gone");
  const int v2 = members.front().group.directory.get();
  try {
    for (const Member& member : members)
      if (to.memory && contains(member.group.controllers, "memory")) make_room(member.group, *to.memory);
    for (Member& member : members) {
      if (member.made)
        member.group = state.make_limited_group(*member.hierarchy, id, to);
      else if (!member.leaves)
        set_limits(member.group, from, to);
    }
    bool moved = false;
    for (const Member& member : members) {
      if (!member.made) continue;
      move_processes(v2, member.group.directory.get());
      moved = true;
    }
    if (moved) {
      SandboxCgroups now(id);
      for (Member& member : members)
        if (!member.leaves)
          now.groups_.push_back({.v2 = member.group.v2,
                                 .weighs = member.group.weighs,
                                 .controllers = member.group.controllers,
                                 .parent = copy_of(member.hierarchy->parent),
                                 .directory = copy_of(member.group.directory)});
      announce(now);
    }
  } catch (...) {
    const std::exception_ptr failed = std::current_exception();
    for (const Member& member : members) {
      try {
        if (!member.made && !member.leaves) set_limits(member.group, to, from);
        if (member.leaves) move_processes(v2, member.group.directory.get());
      } catch (const Error&) {
        // What cannot be taken back stays; the failure that came first is the one to tell.
      }
    }
    // One that was new and has processes stays, with the limits that were asked for.
    for (const Member& member : members)
      if (member.made && member.group.directory) ::unlinkat(member.hierarchy->parent.get(), id.c_str(), AT_REMOVEDIR);
    std::rethrow_exception(failed);
  }
  for (const Member& member : members)
    if (member.leaves) ::unlinkat(member.hierarchy->parent.get(), id.c_str(), AT_REMOVEDIR);
}

}  // namespace dsec::runners
