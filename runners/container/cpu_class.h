#pragma once

#include <string>

#include "runners/isolation/cgroups.h"

namespace dsec::runners {

/// What this host does for a class: "cpu.idle", or "SCHED_IDLE" where no group can weigh processors; "cpu.weight", and
/// "cpu.weight, core scheduling" where processors are threads of one core and the kernel can keep others off it. Empty
/// for Default.
std::string means_of_class(const CgroupHost& host, CpuClass cpu_class);

inline constexpr const char* kIdlePolicy = "SCHED_IDLE";
/// Whether core scheduling is among these means.
bool has_core_scheduling(const std::string& means);

}  // namespace dsec::runners
