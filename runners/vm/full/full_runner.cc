#include "runners/vm/full/full_runner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/signal_name.h"
#include "core/base/units.h"
#include "core/engine/lease.h"
#include "core/engine/screen.h"
#include "core/model/hostname.h"
#include "runners/container/cpu_class.h"
#include "runners/container/guest_place.h"
#include "runners/container/program.h"
#include "runners/container/update.h"
#include "runners/vm/full/full_start.h"
#include "runners/vm/full/machine_screen.h"
#include "runners/vm/kernel_store.h"
#include "runners/vm/machine_root.h"
#include "runners/vm/machine_start.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
namespace {

constexpr std::uint64_t kMebibyte = 1ull << 20, kLeastMemory = 128 * kMebibyte;

[[noreturn]] void refuse(const std::string& what, const std::string& way_out) {
  throw usage_error("a fullvm " + what).hint(way_out);
}

[[noreturn]] void refuse_files() {
  refuse("keeps what it writes on a disk whose files only its own system reads", "dsec cp and dsec exec ask that");
}

class FullRunner final : public engine::Runner, public engine::Screens {
 public:
  FullRunner(const engine::Home& home, engine::Runner& containers, engine::Runner& machines, fs::path dsec)
      : home_(home), containers_(containers), machines_(machines), place_(home.run()), dsec_(std::move(dsec)) {}

  Layers wanted_layers() const override { return Layers::Disk; }

  void check(SandboxSpec& spec) override {
    if (::geteuid() != 0)
      throw failure("running sandboxes needs root").hint("sudo dsec …; importing, building and publishing do not");
    signal_number(spec.config.stop_signal);
    if (!spec.hostname.empty()) check_hostname(spec.hostname);
    const char* const microvm = "--backend microvm, or container";
    if (!spec.binds.empty())
      refuse("shares no filesystem with the host, so -v is not possible", "dsec cp, which copies");
    if (!spec.tmpfs.empty()) refuse("mounts what its own system mounts", microvm);
    if (!spec.devices.empty() || spec.gpus) refuse("has no devices of the host", "--backend container");
    if (spec.network != NetworkMode::None) refuse("has no network, and can be held to no policy", microvm);
    if (spec.userns == UserNamespace::Host)
      refuse("has users of its own: --userns host means nothing to it", "--backend container");
    if (spec.read_only) refuse("has a system that writes to its disk", microvm);
    if (spec.limits.pids) refuse("has as many tasks as its system allows", microvm);
    std::string why;
    if (!cgroups().has_lifecycle(&why)) throw failure("sandboxes need a v2 control group: " + why);
    if (spec.limits.memory && (*spec.limits.memory < kLeastMemory || *spec.limits.memory % kMebibyte != 0))
      throw usage_error("the memory of a fullvm is a multiple of 1 MiB, " + format_size(kLeastMemory) + " or more");
    cgroups().check(limits_of_full_vmm(spec.limits));
    spec.limits.class_by = means_of_class(cgroups(), spec.limits.cpu_class);
    (void)accelerator(vmm());
  }

  engine::RunnerStatus start(engine::RunnerRequest request) override {
    try {
      const fs::path qemu = vmm();
      engine::RunnerStatus status;
      status.state = engine::SandboxState::Running;
      status.keeper_pid =
          start_full_machine({place_, keepers_, cgroups(), program(), dsec_, qemu, accelerator(qemu)}, request);
      return status;
    } catch (...) {
      const std::exception_ptr failed = std::current_exception();
      try {
        reclaim(request.directory);
      } catch (const Error&) {
        // The lease stays; gc tries again.
      }
      std::rethrow_exception(failed);
    }
  }

  std::string screenshot(const fs::path& directory) override {
    demand_life(directory);
    return MachineScreen(directory).screenshot();
  }
  void screen_input(const fs::path& directory, const engine::ScreenInput& input) override {
    demand_life(directory);
    MachineScreen(directory).give(input);
  }
  UniqueFd connect_screen(const fs::path& directory) override {
    demand_life(directory);
    return connect_to_vmm(directory / kMachineDirectory / "screen.sock", std::chrono::seconds(5));
  }

  // What a keeper does is the same for all.
  engine::RunnerStatus status(const fs::path& directory) override { return containers_.status(directory); }
  std::unique_ptr<engine::ExecStream> exec(const fs::path& directory, const ExecSpec& spec) override {
    demand_agent(directory);
    return containers_.exec(directory, spec);
  }
  std::unique_ptr<engine::OpenOperation> begin(const fs::path& directory,
                                               const engine::OperationRequest& request) override {
    return containers_.begin(directory, request);
  }
  std::unique_ptr<engine::ExecStream> attach(const fs::path& directory, const std::string& exec_id,
                                             const engine::AttachFrom& from) override {
    return containers_.attach(directory, exec_id, from);
  }
  std::vector<engine::ExecInfo> commands(const fs::path& directory) override { return containers_.commands(directory); }
  void signal(const fs::path& directory, const std::string& exec_id, int signo) override {
    containers_.signal(directory, exec_id, signo);
  }
  engine::SessionInfo open_session(const fs::path& directory, const SessionSpec& spec) override {
    demand_agent(directory);
    return containers_.open_session(directory, spec);
  }
  std::unique_ptr<engine::ExecStream> run_in_session(const fs::path& directory, const std::string& session,
                                                     const SessionCommand& command) override {
    return containers_.run_in_session(directory, session, command);
  }
  std::vector<engine::SessionInfo> sessions(const fs::path& directory) override {
    return has_agent(directory) ? containers_.sessions(directory) : std::vector<engine::SessionInfo>();
  }
  void close_session(const fs::path& directory, const std::string& session) override {
    containers_.close_session(directory, session);
  }
  bool wait(const fs::path& directory, std::optional<milliseconds> timeout) override {
    return containers_.wait(directory, timeout);
  }
  // As a person would who wants it off: by its button, and if that does not help by its plug.
  void stop(const fs::path& directory, milliseconds grace) override {
    const engine::SandboxState state = containers_.status(directory).state;
    if (grace.count() > 0 && state == engine::SandboxState::Running) {
      press_power_button(directory);
      if (containers_.wait(directory, grace)) return;
    }
    containers_.stop(directory, milliseconds(0));
  }
  void pause(const fs::path& directory) override { containers_.pause(directory); }
  void resume(const fs::path& directory) override { containers_.resume(directory); }
  void logs(const fs::path& directory, const engine::LogOptions& options, const engine::LogSink& sink) override {
    containers_.logs(directory, options, sink);
  }
  engine::NetworkReport network(const fs::path& directory) override { return containers_.network(directory); }
  std::string network_log(const fs::path& directory, std::uint64_t from) override {
    return containers_.network_log(directory, from);
  }
  void set_network(const fs::path&, const NetworkPlan&) override {
    refuse("has no network, and can be held to no policy", "--backend microvm");
  }

  void release(const fs::path& directory) override { containers_.release(directory); }
  void reclaim(const fs::path& directory) override {
    containers_.reclaim(directory);
    for (const char* name : {kMachineDirectory, kDiskTop, kVariables, kSeed, kAgentMark}) remove_tree(directory / name);
  }
  void release_shared() override { keepers_.clear(); }

  void update(const fs::path& directory, const SandboxSpec& before, SandboxSpec& after) override {
    const char* const again = "make it again with what it needs";
    if (before.limits.memory != after.limits.memory) refuse("keeps the memory that it was made with", again);
    if (before.limits.disk != after.limits.disk) refuse("keeps the disk that it was made with", again);
    if (after.limits.pids) refuse("has as many tasks as its system allows", again);
    if (machine_cpus(before.limits) < machine_cpus(after.limits))
      refuse("has no more processors than it was made with", again);
    SandboxSpec vmm_before = before, vmm_after = after;
    vmm_before.limits = limits_of_full_vmm(before.limits);
    vmm_after.limits = limits_of_full_vmm(after.limits);
    update_sandbox(cgroups(), directory, vmm_before, vmm_after);
    after.limits.class_by = vmm_after.limits.class_by;
  }

  std::unique_ptr<engine::Stillness> hold_still(const fs::path&) override { refuse_files(); }
  UniqueFd open_writable_layer(const fs::path&) override { refuse_files(); }
  std::vector<engine::Change> diff(const fs::path&, const engine::OpenLayers&) override { refuse_files(); }

  // By the channel, in the system as it is.
  UniqueFd connect(const fs::path& directory, std::uint16_t port) override {
    demand_agent(directory);
    return machines_.connect(directory, port);
  }
  std::unique_ptr<engine::FileWatch> watch(const fs::path& directory, const std::string& path,
                                           bool recursive) override {
    demand_agent(directory);
    return machines_.watch(directory, path, recursive);
  }
  void copy_out(const fs::path& directory, const engine::OpenLayers& layers, const std::string& path, int fd) override {
    demand_agent(directory);
    machines_.copy_out(directory, layers, path, fd);
  }
  void copy_in(const fs::path& directory, const engine::OpenLayers& layers, const std::string& path, int fd) override {
    demand_agent(directory);
    machines_.copy_in(directory, layers, path, fd);
  }

  // Those of the VMM: what its system calls memory in use is another matter.
  engine::SandboxStats stats(const fs::path& directory) override {
    const std::optional<engine::Lease> lease = engine::Lease::read(directory);
    if (!lease) throw failure("the sandbox is gone");
    engine::SandboxStats stats;
    const engine::SandboxState state = containers_.status(directory).state;
    if (state == engine::SandboxState::Running || state == engine::SandboxState::Paused) {
      const CgroupStats used = SandboxCgroups::open(cgroups(), lease->id).stats();
      stats.memory_bytes = used.memory_bytes;
      stats.memory_peak = used.memory_peak;
      stats.cpu_usec = used.cpu_usec;
    }
    stats.memory_limit = limits_of_full_vmm(lease->spec.limits).memory.value_or(0);
    struct stat top = {};
    if (::stat((directory / kDiskTop).c_str(), &top) == 0)
      stats.disk_bytes = static_cast<std::uint64_t>(top.st_blocks) * 512;
    stats.disk_limit = lease->spec.limits.disk.value_or(0);
    return stats;
  }

 private:
  void demand_life(const fs::path& directory) {
    const engine::RunnerStatus status = containers_.status(directory);
    if (status.state != engine::SandboxState::Running && status.state != engine::SandboxState::Paused)
      throw usage_error("its machine is " + std::string(engine::to_string(status.state)));
  }

  // Written when it was made, so that nobody has to read the layer for it.
  static bool has_agent(const fs::path& directory) { return fs::exists(directory / kAgentMark); }
  static void demand_agent(const fs::path& directory) {
    if (!has_agent(directory))
      throw usage_error("its system does not start dsec's agent, so nothing can be run or copied in it")
          .hint("dsec vm build makes disks that do; dsec vm type and dsec vm console need none");
  }

  // A disk does not say in time whether its system has begun.
  Accelerator accelerator(const fs::path& qemu) const {
    if (::access("/dev/kvm", R_OK | W_OK) != 0) return Accelerator::Tcg;
    const std::optional<GuestKernel> kernel = find_guest_kernel(home_.root());
    if (!kernel)
      throw failure("whether KVM works here is tried with a kernel for guests, and there is none")
          .hint("dsec vm kernel import");
    return choose_accelerator(qemu, kernel->kernel);
  }
  static fs::path vmm() {
    fs::path found = find_qemu();
    if (found.empty()) throw failure("there is no qemu-system-x86_64 here").hint("apt install qemu-system-x86");
    return found;
  }
  const CgroupHost& cgroups() {
    const std::lock_guard lock(mutex_);
    if (!cgroups_) cgroups_.emplace(home_.host_id());
    return *cgroups_;
  }
  int program() {
    const std::lock_guard lock(mutex_);
    if (!program_) program_ = load_guest_program();
    return program_.get();
  }

  const engine::Home& home_;
  engine::Runner& containers_;
  engine::Runner& machines_;
  GuestPlace place_;
  const fs::path dsec_;
  std::mutex mutex_;
  std::optional<CgroupHost> cgroups_;
  UniqueFd program_;
  KeeperSupply keepers_;
};

}  // namespace

std::unique_ptr<engine::Runner> make_full_runner(const engine::Home& home, engine::Runner& containers,
                                                 engine::Runner& machines, const fs::path& dsec) {
  return std::make_unique<FullRunner>(home, containers, machines, dsec);
}

}  // namespace dsec::runners
