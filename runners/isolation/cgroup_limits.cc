#include <cerrno>
#include <cmath>

#include "core/base/error.h"
#include "runners/isolation/cgroup_host.h"
#include "runners/isolation/cgroup_ops.h"

namespace dsec::runners {
namespace {

/// Throws naming the limit, the file and the reason.
void set(int group, const char* file, const std::string& value, const char* limit) {
  const int failed = cgroup::write(group, file, value.c_str());
  if (failed == 0) return;
  throw system_error("write " + value + " to " + file, -failed)
      .context("cannot enforce the " + std::string(limit) + " limit of the sandbox");
}

std::string number_or(const std::optional<std::uint64_t>& limit, const char* none) {
  return limit ? std::to_string(*limit) : none;
}

void limit_memory(int group, bool v2, const std::optional<std::uint64_t>& from,
                  const std::optional<std::uint64_t>& to) {
  const std::string value = number_or(to, v2 ? "max" : "-1");
  // Swap would make the limit one of resident memory only. Absent files: this kernel does not account swap, and then
  // the limit covers what can be covered.
  const auto limit_swap = [&] {
    const char* file = v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes";
    const int failed = cgroup::write(group, file, v2 && to ? "0" : value.c_str());
    if (failed != 0 && failed != -ENOENT)
      throw system_error("write to " + std::string(file), -failed)
          .context("cannot enforce the memory limit of the sandbox");
  };
  // In v1 the limit with swap may at no time be the lower one.
  const bool raised = from && (!to || *to > *from);
  if (raised) limit_swap();
  set(group, v2 ? "memory.max" : "memory.limit_in_bytes", value, "memory");
  if (!raised) limit_swap();
}

void limit_cpu(int group, bool v2, const std::optional<double>& cpus) {
  // Microseconds; what the kernel gives every new group. In v1 it has a file of its own, which is left alone: for each
  // write the kernel looks at all groups of the host.
  constexpr long kPeriod = 100'000;
  // The kernel refuses less than a millisecond.
  const std::string quota = cpus ? std::to_string(std::max(1000L, std::lround(*cpus * kPeriod))) : v2 ? "max" : "-1";
  if (v2) return set(group, "cpu.max", quota + ' ' + std::to_string(kPeriod), "cpu");
  set(group, "cpu.cfs_quota_us", quota, "cpu");
}

/// A v1 group that shares its hierarchy with cpuset takes no process before it has CPUs and memory nodes.
void inherit_cpuset(int parent, int group) {
  for (const char* file : {"cpuset.cpus", "cpuset.mems"}) {
    char text[1024];
    if (cgroup::read(group, file, text, sizeof text) > 1) continue;
    if (cgroup::read(parent, file, text, sizeof text) > 0) cgroup::write(group, file, text);
  }
}

}  // namespace

void set_class(int group, bool v2, CpuClass from, CpuClass to) {
  if (from == to) return;
  // An idle group has no weight that could be set.
  if (from == CpuClass::Batch) set(group, "cpu.idle", "0", "class");
  if (to == CpuClass::Batch) return set(group, "cpu.idle", "1", "class");
  const bool latency = to == CpuClass::Latency;
  if (v2) return set(group, "cpu.weight", latency ? "1000" : "100", "class");
  set(group, "cpu.shares", latency ? "10240" : "1024", "class");
}

void set_limits(const SandboxCgroups::Group& group, const Limits& from, const Limits& to) {
  const int fd = group.directory.get();
  const auto has = [&](const char* controller) { return contains(group.controllers, controller); };
  if (has("memory") && from.memory != to.memory) limit_memory(fd, group.v2, from.memory, to.memory);
  if (has("cpu") && from.cpus != to.cpus) limit_cpu(fd, group.v2, to.cpus);
  if (has("cpu") && group.weighs) set_class(fd, group.v2, from.cpu_class, to.cpu_class);
  if (has("pids") && from.pids != to.pids) set(fd, "pids.max", number_or(to.pids, "max"), "pids");
}

std::vector<std::string> controllers_of(const CgroupHierarchy& hierarchy, int group) {
  std::vector<std::string> result;
  const auto present = hierarchy.v2 ? words_in(group, "cgroup.controllers") : hierarchy.controllers;
  for (const char* each : kOurControllers)
    if (contains(present, each)) result.emplace_back(each);
  return result;
}

bool CgroupHost::State::wanted(const Hierarchy& hierarchy, const Limits& limits) {
  if (hierarchy.v2) return true;
  const bool cpu = limits.cpus || limits.cpu_class != CpuClass::Default;
  return (limits.memory && of("memory") == &hierarchy) || (cpu && of("cpu", limits.cpu_class) == &hierarchy) ||
         (limits.pids && of("pids") == &hierarchy);
}

SandboxCgroups::Group CgroupHost::State::make_limited_group(Hierarchy& hierarchy, const std::string& id,
                                                            const Limits& limits) {
  if (const int failed = make_group(hierarchy, id); failed != 0)
    throw system_error("make the control group " + quote(hierarchy.name + '/' + id) + " in " + quote(hierarchy.root),
                       failed);
  SandboxCgroups::Group group{.v2 = hierarchy.v2,
                              .weighs = hierarchy.v2 || hierarchy.of_classes,
                              .controllers = {},
                              .parent = copy_of(hierarchy.parent),
                              .directory = open_group(hierarchy.parent.get(), id)};
  if (!group.directory) throw system_error("open the control group " + quote(hierarchy.name + '/' + id));
  group.controllers = controllers_of(hierarchy, group.directory.get());
  if (contains(hierarchy.controllers, "cpuset") && !hierarchy.v2)
    inherit_cpuset(hierarchy.parent.get(), group.directory.get());
  set_limits(group, {}, limits);
  return group;
}

}  // namespace dsec::runners
