#pragma once

#include <string>
#include <vector>

#include "runners/isolation/device_list.h"

namespace dsec::runners {

/// Hidden inside: a file is covered by /dev/null, a directory (which ends with '/' here) by an empty read-only tmpfs;
/// what a kernel does not have is passed over. The list of docker and podman, then what tells of the host or gives a
/// place to attack it from.
inline constexpr const char* kMaskedPaths[] = {
    "/proc/acpi/",
    "/proc/asound/",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi/",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap/",
    "/sys/firmware/",
    // Physical memory, by page.
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/kpagecgroup",
    // The kernel's allocators, addresses and modules.
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/pagetypeinfo",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/config.gz",
    // The kernel's log.
    "/proc/kmsg",
    "/sys/kernel/debug/",
    "/sys/kernel/tracing/",
    "/sys/kernel/security/",
    "/sys/fs/pstore/",
    "/sys/fs/selinux/",
};

/// kMaskedPaths, and of each CPU that has it thermal_throttle: heat tells what the neighbours do.
std::vector<std::string> masked_paths();

/// Visible, never writable.
inline constexpr const char* kReadOnlyPaths[] = {
    "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
};

}  // namespace dsec::runners
