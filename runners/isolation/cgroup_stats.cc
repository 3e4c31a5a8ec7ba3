#include <dirent.h>
#include <fcntl.h>

#include <cstdio>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/isolation/cgroup_ops.h"
#include "runners/isolation/cgroups.h"

namespace dsec::runners {
namespace {

std::uint64_t at_least_zero(std::int64_t value) { return value < 0 ? 0 : static_cast<std::uint64_t>(value); }

/// Of a process that may end meanwhile: then nothing.
std::uint64_t anonymous_memory(const std::string& pid) {
  const UniqueFd fd(::open(("/proc/" + pid + "/status").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return 0;
  std::istringstream lines;
  try {
    lines.str(read_all(fd.get()));
  } catch (const Error&) {
    return 0;
  }
  std::uint64_t kib = 0;
  for (std::string line; std::getline(lines, line);) {
    unsigned long long value = 0;
    if (std::sscanf(line.c_str(), "RssAnon: %llu", &value) == 1 ||
        std::sscanf(line.c_str(), "RssShmem: %llu", &value) == 1)
      kib += value;
  }
  return kib * 1024;
}

/// Adds up the processes of a group and of those below it.
void count_processes(int group, CgroupStats& stats, bool memory, int depth) {
  if (const UniqueFd procs(::openat(group, "cgroup.procs", O_RDONLY | O_CLOEXEC)); procs) {
    std::istringstream pids(read_all(procs.get()));
    for (std::string pid; pids >> pid;) {
      ++stats.pids;
      if (memory) stats.memory_bytes += anonymous_memory(pid);
    }
  }
  UniqueFd again(::openat(group, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* directory = again ? ::fdopendir(again.release()) : nullptr;
  if (directory == nullptr) return;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || depth > 8) continue;
    if (const UniqueFd child(::openat(group, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)); child)
      count_processes(child.get(), stats, memory, depth + 1);
  }
  ::closedir(directory);
}

bool has(const SandboxCgroups::Group& group, const char* controller) {
  for (const std::string& each : group.controllers)
    if (each == controller) return true;
  return false;
}

}  // namespace

CgroupStats SandboxCgroups::stats() const {
  CgroupStats stats;
  bool have_pids = false;
  const Group* memory_group = memory();
  for (const Group& group : groups_) {
    const int fd = group.directory.get();
    if (has(group, "pids")) {
      stats.pids = at_least_zero(cgroup::number(fd, "pids.current"));
      have_pids = true;
    }
    // Every v2 group counts processor time, also without the controller.
    if (group.v2) stats.cpu_usec = at_least_zero(cgroup::counter(fd, "cpu.stat", "usage_usec"));
  }
  if (memory_group != nullptr) {
    const int fd = memory_group->directory.get();
    stats.memory_bytes =
        at_least_zero(cgroup::number(fd, memory_group->v2 ? "memory.current" : "memory.usage_in_bytes"));
    if (const std::int64_t peak = cgroup::number(fd, memory_group->v2 ? "memory.peak" : "memory.max_usage_in_bytes");
        peak >= 0)
      stats.memory_peak = static_cast<std::uint64_t>(peak);
    if (const std::int64_t kills = cgroup::oom_kills(fd, memory_group->v2); kills >= 0)
      stats.oom_kills = static_cast<std::uint64_t>(kills);
  }
  if (v2() >= 0 && (!have_pids || memory_group == nullptr)) {
    CgroupStats counted;
    count_processes(v2(), counted, memory_group == nullptr, 0);
    if (!have_pids) stats.pids = counted.pids;
    if (memory_group == nullptr) stats.memory_bytes = counted.memory_bytes;
  }
  return stats;
}

}  // namespace dsec::runners
