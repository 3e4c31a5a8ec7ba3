#include "runners/container/cpu_class.h"

#include <linux/prctl.h>
#include <sys/prctl.h>

#include <cstdint>

namespace dsec::runners {
namespace {

constexpr const char* kCoreScheduling = ", core scheduling";

// The kernel answers only where it has this, and processors that share a core.
bool can_schedule_cores() {
  alignas(8) std::uint64_t cookie = 0;
  return ::prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, 0, &cookie) == 0;
}

}  // namespace

std::string means_of_class(const CgroupHost& host, CpuClass cpu_class) {
  if (cpu_class == CpuClass::Default) return "";
  if (cpu_class == CpuClass::Batch) return host.weighs_processors(cpu_class) ? "cpu.idle" : kIdlePolicy;
  return std::string("cpu.weight") + (can_schedule_cores() ? kCoreScheduling : "");
}

bool has_core_scheduling(const std::string& means) { return means.find(kCoreScheduling) != std::string::npos; }

}  // namespace dsec::runners
