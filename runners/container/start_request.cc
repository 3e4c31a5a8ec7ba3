#include "runners/container/start_request.h"

#include <fcntl.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/signal_name.h"
#include "core/engine/lease.h"
#include "runners/container/channel.h"
#include "runners/container/cpu_class.h"
#include "runners/isolation/resource_limits.h"
#include "runners/isolation/sandbox_paths.h"
#include "runners/isolation/seccomp_filter.h"

namespace dsec::runners {
namespace {

class StartFrame {
 public:
  explicit StartFrame(const StartRequest& request) : request_(request), spec_(request.sandbox.spec) {
    add_settings();
    add_places();
    add_groups();
    add_restrictions();
    add_end();
    // Not named: the keeper has them as long as it lives.
    for (const FileLock& hold : request_.sandbox.holds) descriptors_.add(hold.fd());
  }

  void send_to(KeeperLaunch& keeper) { send_request(keeper, wire::Type::Start, text_.text(), descriptors_.all()); }

 private:
  std::uint32_t flags() const {
    std::uint32_t flags = request_.flags;
    if (spec_.limits.class_by == kIdlePolicy) flags |= wire::kStartIdlePolicy;
    if (spec_.limits.cpu_class == CpuClass::Batch) flags |= wire::kStartIdle;
    if (has_core_scheduling(spec_.limits.class_by)) flags |= wire::kStartCoreScheduling;
    return flags;
  }

  void add_settings() {
    const auto milliseconds = [](const auto& duration) {
      return static_cast<std::uint64_t>(std::max<std::int64_t>(duration ? duration->count() : 0, 0));
    };
    text_.u32(wire::kVersion).u32(flags()).str(request_.sandbox.directory.native()).str(request_.sandbox.id);
    text_.str(request_.hostname).str(engine::ProcessIdentity::self().boot_id);
    text_.u64(milliseconds(spec_.lifetime)).u64(milliseconds(spec_.idle)).u64(milliseconds(spec_.idle_pause));
    text_.u64(spec_.limits.output);
    text_.u32(static_cast<std::uint32_t>(signal_number(spec_.config.stop_signal))).u64(request_.capabilities);
    text_.str({reinterpret_cast<const char*>(kSeccompProgram), sizeof kSeccompProgram});
    text_.strs(request_.environment).str(request_.workdir).str(request_.user);
    text_.u32(request_.map.first).u32(request_.map.count);
  }

  void add_places() {
    text_.u32(descriptors_.keep(open_file(request_.sandbox.directory, O_RDONLY | O_DIRECTORY)));
    text_.u32(descriptors_.add(request_.keeper_namespace->get()));
    text_.u32(request_.user_namespace >= 0 ? descriptors_.add(request_.user_namespace) : kNoDescriptor);
    text_.u32(descriptors_.add(request_.program));
    engine::LoadCount& count = request_.sandbox.stack.loading;
    text_.u32(count.file ? descriptors_.keep(std::move(count.file)) : kNoDescriptor).u64(count.bytes);
    text_.str({reinterpret_cast<const char*>(count.places.data()), count.places.size() * sizeof count.places[0]});
  }

  std::uint32_t kill_count() {
    const SandboxCgroups::Group* const memory = request_.counts_kills ? request_.cgroups.memory() : nullptr;
    if (!memory) return kNoDescriptor;
    UniqueFd file(
        ::openat(memory->directory.get(), memory->v2 ? "memory.events" : "memory.oom_control", O_RDONLY | O_CLOEXEC));
    return file ? descriptors_.keep(std::move(file)) : kNoDescriptor;
  }

  void add_groups() {
    const SandboxCgroups& cgroups = request_.cgroups;
    text_.u32(descriptors_.add(cgroups.v2())).u32(descriptors_.add(cgroups.groups().front().parent.get()));
    text_.u32(kill_count());
    const auto& trajectory = request_.sandbox.trajectory;
    text_.u32(trajectory.empty() ? kNoDescriptor : descriptors_.keep(open_file(trajectory, O_RDONLY | O_DIRECTORY)));
    text_.u32(request_.sandbox.trajectory_checksum).str(cgroups.name());
    std::vector<UniqueFd> joins = cgroups.join_descriptors();
    text_.u32(static_cast<std::uint32_t>(joins.size()));
    // join_descriptors() gives one for each v1 group, in their order.
    std::size_t next = 0;
    for (const SandboxCgroups::Group& group : cgroups.groups()) {
      if (group.v2 || next == joins.size()) continue;
      text_.u32(descriptors_.add(group.parent.get()));
      text_.u32(descriptors_.keep(std::move(joins[next++]))).str(cgroups.name());
    }
  }

  void add_restrictions() {
    text_.strs(request_.masked_paths).strs(request_.read_only_paths);
    text_.u32(std::size(kResourceLimits));
    for (const ResourceLimit& limit : kResourceLimits)
      text_.u32(static_cast<std::uint32_t>(limit.resource)).u64(limit.soft).u64(limit.hard);
    text_.str(kOomScoreAdj);
  }

  void add_end() {
    std::vector<std::string> remover, environment;
    if (spec_.remove_at_end && !request_.dsec.empty()) {
      remover = {request_.dsec.native(), "--context", "local", "rm", request_.sandbox.id};
      environment = {"DSEC_HOME=" + request_.sandbox.directory.parent_path().parent_path().native(),
                     "PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
    }
    text_.strs(remover).strs(environment);
    if (request_.machine.empty()) return;
    text_.strs(request_.machine).u32(descriptors_.add(request_.machine_errors));
    text_.u32(request_.machine_memory >= 0 ? descriptors_.add(request_.machine_memory) : kNoDescriptor);
    text_.str(request_.machine_memory_path);
  }

  const StartRequest& request_;
  const SandboxSpec& spec_;
  FrameText text_;
  DescriptorList descriptors_;
};

}  // namespace

std::uint32_t DescriptorList::add(int fd) {
  fds_.push_back(fd);
  return static_cast<std::uint32_t>(fds_.size() - 1);
}

std::uint32_t DescriptorList::keep(UniqueFd fd) {
  owned_.push_back(std::move(fd));
  return add(owned_.back().get());
}

void send_start(KeeperLaunch& keeper, const StartRequest& request) { StartFrame(request).send_to(keeper); }

void send_request(KeeperLaunch& keeper, wire::Type type, std::string_view text, std::span<const int> descriptors) {
  try {
    keeper.channel().send(type, text, descriptors);
  } catch (const Error&) {
    const std::exception_ptr failed = std::current_exception();
    keeper.await_execution();
    std::optional<Frame> answer;
    try {
      answer = keeper.channel().receive();
    } catch (const Error&) {
      // It could not say anything.
    }
    if (answer && answer->type == wire::Type::Failed) throw keeper_error(*answer);
    std::rethrow_exception(failed);
  }
}

int await_start(KeeperLaunch& keeper) {
  keeper.await_execution();
  const std::optional<Frame> answer = keeper.channel().receive();
  if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
  wire::Reader reader = answer->reader();
  const std::uint32_t pid = reader.u32();
  if (answer->type != wire::Type::Started || !reader.ok()) throw failure("the sandbox's keeper broke the protocol");
  return static_cast<int>(pid);
}

}  // namespace dsec::runners
