#pragma once

#include <sys/resource.h>

namespace dsec::runners {

struct ResourceLimit {
  int resource;
  rlim_t soft, hard;
};

/// What processes of a sandbox start with. Hard limits are lowered to this where the host's are higher, and stay as
/// they are where the host's are lower: raising them needs CAP_SYS_RESOURCE, which dsec may not have.
inline constexpr ResourceLimit kResourceLimits[] = {
    // 1024 because programs that use select() break above it; they may raise it themselves.
    {RLIMIT_NOFILE, 1024, 1048576},
    // One byte is the kernel's special value for "do not run the host's core dump program" (core(5)): zero would not
    // keep a piped core_pattern from starting as the host's root.
    {RLIMIT_CORE, 1, 1},
    {RLIMIT_STACK, 8ul << 20, RLIM_INFINITY},
    {RLIMIT_MEMLOCK, 8ul << 20, 8ul << 20},
    // POSIX queues and signals are counted per user of the namespace: the kernel's usual values, whatever the host has.
    {RLIMIT_MSGQUEUE, 819200, 819200},
    // No real-time scheduling and no raised priority against the host.
    {RLIMIT_RTPRIO, 0, 0},
    {RLIMIT_NICE, 0, 0},
};

/// Applies them to the calling process. Returns 0 or the errno of the first that could not be set.
int apply_resource_limits() noexcept;

/// oom_score_adj of sandboxed processes: before the keeper and the host's daemons.
inline constexpr char kOomScoreAdj[] = "500";

}  // namespace dsec::runners
