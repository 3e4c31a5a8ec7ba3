#include "runners/container/sandbox_stats.h"

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "runners/container/state_file.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {

engine::SandboxStats sandbox_stats(const CgroupHost& host, const std::filesystem::path& directory) {
  const std::optional<engine::Lease> lease = engine::Lease::read(directory);
  if (!lease) throw failure("the sandbox is gone");
  const CgroupStats used = SandboxCgroups::open(host, lease->id).stats();
  const Limits& limits = lease->spec.limits;
  const std::optional<SandboxRecord> record = read_record(directory);
  return {.memory_bytes = used.memory_bytes,
          .memory_limit = limits.memory.value_or(0),
          .memory_peak = used.memory_peak,
          .memory_before_pause = record ? record->memory_before_pause : std::nullopt,
          .cpu_usec = used.cpu_usec,
          .pids = used.pids,
          .pids_limit = limits.pids.value_or(0),
          .disk_bytes = writable_layer_bytes(directory),
          .disk_limit = limits.disk.value_or(0),
          .oom_kills = used.oom_kills};
}

}  // namespace dsec::runners
