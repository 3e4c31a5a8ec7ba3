#include "runners/container/update.h"

#include "core/base/error.h"
#include "core/base/units.h"
#include "runners/container/channel.h"
#include "runners/container/cpu_class.h"
#include "runners/container/pause.h"
#include "runners/isolation/writable_layer.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

std::uint64_t milliseconds(const std::optional<std::chrono::milliseconds>& duration) {
  return static_cast<std::uint64_t>(duration ? duration->count() : 0);
}

// Without groups: the times and the output alone.
void tell_keeper(const fs::path& directory, const SandboxSpec& spec, std::uint32_t flags,
                 const SandboxCgroups* groups) {
  std::optional<Channel> channel = Channel::connect(directory);
  if (!channel) throw failure("its keeper is gone");
  FrameText text;
  text.u64(milliseconds(spec.lifetime)).u64(milliseconds(spec.idle)).u64(milliseconds(spec.idle_pause));
  text.u64(spec.limits.output).u32(flags);
  std::vector<UniqueFd> joins = groups ? groups->join_descriptors() : std::vector<UniqueFd>{};
  std::vector<int> descriptors;
  text.u32(static_cast<std::uint32_t>(joins.size()));
  if (groups) {
    // join_descriptors() gives one for each v1 group, in their order.
    std::size_t next = 0;
    for (const SandboxCgroups::Group& group : groups->groups()) {
      if (group.v2 || next == joins.size()) continue;
      for (const int fd : {group.parent.get(), joins[next].get()}) {
        text.u32(static_cast<std::uint32_t>(descriptors.size()));
        descriptors.push_back(fd);
      }
      text.str(groups->name());
      ++next;
    }
  }
  try {
    channel->send(wire::Type::Update, text.text(), descriptors);
    const std::optional<Frame> answer = channel->receive();
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
  } catch (const KeeperGone&) {
    throw failure("its keeper does not know how, or has just ended")
        .hint("a sandbox of an earlier release keeps its times and groups; dsec ps shows whether it is still there");
  }
}

// Of the files of a project, or of what lies there without a limit.
void check_disk(const fs::path& directory, const SandboxSpec& before, const SandboxSpec& after) {
  const auto refuse = [](const std::string& why) {
    return usage_error(why).hint("fork it, or make it again, with the limit that it needs");
  };
  if (after.read_only) throw usage_error("it has no writable layer that could be limited");
  if (!before.limits.disk) throw refuse("it was made without a disk limit, and none can be given to it now");
  if (!after.limits.disk) throw refuse("its disk limit cannot be taken away");
  if (!has_disk_quota(directory))
    throw refuse("its writable layer lies in a file of " + format_size(*before.limits.disk) + ", whose size stays");
  if (const std::uint64_t used = writable_layer_bytes(directory); used > *after.limits.disk)
    throw usage_error("its writable layer takes " + format_size(used) + ", more than the new limit of " +
                      format_size(*after.limits.disk))
        .hint("delete files in it first");
}

void check_class(const SandboxSpec& before, const SandboxSpec& after) {
  if (before.limits.cpu_class == after.limits.cpu_class) return;
  if (before.limits.class_by != kIdlePolicy && after.limits.class_by != kIdlePolicy) return;
  throw usage_error("the class of a sandbox that runs can be changed only where control groups weigh processors")
      .hint("dsec doctor, which shows what this host can limit");
}

bool same_groups(const Limits& a, const Limits& b) {
  return a.cpus == b.cpus && a.memory == b.memory && a.pids == b.pids && a.cpu_class == b.cpu_class;
}

}  // namespace

void update_sandbox(const CgroupHost& host, const fs::path& directory, const SandboxSpec& before, SandboxSpec& after) {
  const std::string id = directory.filename();
  host.check(after.limits);
  if (before.limits.cpu_class != after.limits.cpu_class) {
    // What has begun without a cookie of its own goes on without, and what has one keeps it.
    std::string means = means_of_class(host, after.limits.cpu_class);
    if (has_core_scheduling(means)) means = "cpu.weight";
    after.limits.class_by = means;
    check_class(before, after);
  }
  const bool disk = before.limits.disk != after.limits.disk;
  if (disk) check_disk(directory, before, after);

  const bool times = before.lifetime != after.lifetime || before.idle != after.idle ||
                     before.idle_pause != after.idle_pause || before.limits.output != after.limits.output;
  const bool idle = after.limits.cpu_class == CpuClass::Batch;
  const std::uint32_t flags = (times ? wire::kUpdateTimes : 0u) | (idle ? wire::kUpdateIdle : 0u);
  bool told = false;
  if (!same_groups(before.limits, after.limits)) {
    const bool lower = after.limits.memory && (!before.limits.memory || *after.limits.memory < *before.limits.memory);
    std::unique_ptr<engine::Stillness> still;
    // So that nothing is made inside that would not be moved, or counted.
    if (lower || SandboxCgroups::moves(host, id, after.limits)) still = hold_sandbox_still(directory);
    SandboxCgroups::change(host, id, before.limits, after.limits, [&](const SandboxCgroups& groups) {
      tell_keeper(directory, after, flags | wire::kUpdateGroups, &groups);
      told = true;
    });
  }
  try {
    if (disk) limit_disk(directory, *after.limits.disk);
    if (!told && (times || before.limits.cpu_class != after.limits.cpu_class))
      tell_keeper(directory, after, flags, nullptr);
  } catch (...) {
    const std::exception_ptr failed = std::current_exception();
    try {
      if (disk) limit_disk(directory, *before.limits.disk);
      if (!told && !same_groups(before.limits, after.limits))
        SandboxCgroups::change(host, id, after.limits, before.limits, [](const SandboxCgroups&) {});
    } catch (const Error&) {
      // The failure that came first is the one to tell.
    }
    std::rethrow_exception(failed);
  }
}

}  // namespace dsec::runners
