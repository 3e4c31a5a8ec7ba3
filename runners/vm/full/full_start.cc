#include "runners/vm/full/full_start.h"

#include <fcntl.h>

#include <chrono>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/signal_name.h"
#include "core/base/units.h"
#include "runners/container/channel.h"
#include "runners/container/start_request.h"
#include "runners/container/state_file.h"
#include "runners/isolation/id_map.h"
#include "runners/isolation/resource_limits.h"
#include "runners/isolation/sandbox_paths.h"
#include "runners/vm/full/full_machine.h"
#include "runners/vm/full/seed.h"
#include "runners/vm/guest_link.h"
#include "runners/vm/last_words.h"
#include "runners/vm/machine_root.h"
#include "runners/vm/machine_start.h"
#include "runners/vm/qmp.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using engine::RunnerRequest;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace {

constexpr std::chrono::seconds kVmmPatience{20};
// Emulated on a busy host, a whole system takes minutes.
constexpr std::chrono::minutes kSystemPatience{15};
// Code and data of QEMU, what it translates, the memory of the screen, and what the kernel counts for its files.
constexpr std::uint64_t kFullVmmMemory = 512ull << 20;

class FullStarter {
 public:
  FullStarter(const FullParts& parts, RunnerRequest& request)
      : parts_(parts), request_(request), spec_(request.spec), directory_(request.directory) {}

  int run() {
    const int pid = start_vmm();
    try {
      meet();
    } catch (Error& error) {
      explain(error);
      throw;
    }
    return pid;
  }

 private:
  int start_vmm() {
    launched_ = parts_.keepers.take(parts_.cgroups, parts_.program, directory_);
    KeeperLaunch& keeper = *launched_;
    const IdMap map = id_map_for(request_.id, host_id_range());
    NewUserNamespace user_namespace(map, NewUserNamespace::Network::With);
    const SandboxCgroups cgroups = attempt("cannot make its control groups", [&] {
      return SandboxCgroups::create(parts_.cgroups, request_.id, limits_of_full_vmm(spec_.limits));
    });
    attempt("cannot make its disk", [&] { plan_machine(); });
    MachineRoot root = attempt("cannot make what its VMM sees", [&] {
      return make_machine_root(parts_.place, directory_, user_namespace.fd(), parts_.accelerator, files_);
    });
    auto [errors, errors_end] = make_pipe();
    errors_.emplace(std::move(errors));
    send_start(keeper, start_request(cgroups, user_namespace.fd(), map, errors_end.get()));
    errors_end.reset();
    const UniqueFd network = user_namespace.take_network();
    send_machine_root(keeper, root, network.get());
    root.parts.clear();
    const int pid = await_start(keeper);
    keeper.finish();
    return pid;
  }

  void plan_machine() {
    const engine::BootDisk& disk = request_.stack.disk.value();
    const std::uint64_t size = spec_.limits.disk.value_or(disk.form.size);
    if (size < disk.form.size)
      throw usage_error("the disk of the layer has " + format_size(disk.form.size) + ", and it cannot become smaller")
          .hint("--disk " + format_size(disk.form.size) + " or more, or none");
    make_disk_top(directory_ / kDiskTop, size);
    machine_.cpus = machine_cpus(spec_.limits);
    machine_.memory = spec_.limits.memory.value_or(kFullMemory);
    machine_.disk = show(disk.file, "/drives/disk", false);
    machine_.format = disk.form.format;
    machine_.top = show(directory_ / kDiskTop, "/drives/top", true);
    if (!spec_.user_data.empty()) {
      write_file_atomic(directory_ / kSeed, make_seed(seed_files(spec_.user_data, request_.id, hostname())), 0600);
      machine_.seed = show(directory_ / kSeed, "/drives/seed", false);
    }
    if (disk.form.firmware == "uefi") {
      const FullMachine::Uefi uefi = find_uefi();
      fs::copy_file(uefi.variables, directory_ / kVariables, fs::copy_options::overwrite_existing);
      // The code is below /usr, which the VMM sees.
      machine_.uefi = {.code = uefi.code, .variables = show(directory_ / kVariables, "/guest/variables", true)};
    }
    const fs::path own = kMachineInside;
    machine_.channel = own / "channel.sock";
    machine_.control = own / "control.sock";
    machine_.screen = own / "screen.sock";
  }

  fs::path show(const fs::path& source, const std::string& target, bool writable) {
    files_.push_back({source, target, writable});
    return target;
  }

  StartRequest start_request(const SandboxCgroups& cgroups, int user_namespace, const IdMap& map, int errors) {
    return {.sandbox = request_,
            .cgroups = cgroups,
            .flags = wire::kStartUserNamespace | wire::kStartMachine | wire::kStartConsole,
            .hostname = hostname(),
            .capabilities = 0,
            .environment = {},
            .workdir = "",
            .user = "",
            .map = map,
            .keeper_namespace = parts_.place.keeper_namespace(),
            .user_namespace = user_namespace,
            .program = parts_.program,
            .counts_kills = false,
            .masked_paths = masked_paths(),
            .read_only_paths = {std::begin(kReadOnlyPaths), std::end(kReadOnlyPaths)},
            .dsec = parts_.dsec,
            .machine = full_machine_command(parts_.vmm, parts_.accelerator, machine_),
            .machine_errors = errors};
  }

  std::string hostname() const { return spec_.hostname.empty() ? request_.id : spec_.hostname; }

  // Of a system that runs by itself: what a sandbox in it would be made of is left empty.
  std::string configuration() const {
    FrameText text;
    text.u32(channel::kVersion);
    text.u32(channel::kReadOnly | channel::kPrivileged | channel::kGuestNetwork | channel::kWholeMachine);
    text.str(request_.id).str(hostname()).str("");
    text.strs(spec_.config.env).str(spec_.config.workdir).str(spec_.config.user);
    text.u32(static_cast<std::uint32_t>(signal_number(spec_.config.stop_signal)));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    text.u64(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
    text.u64(~std::uint64_t{0}).str("").strs({}).strs({});
    text.u32(std::size(kResourceLimits));
    for (const ResourceLimit& limit : kResourceLimits)
      text.u32(static_cast<std::uint32_t>(limit.resource)).u64(limit.soft).u64(limit.hard);
    text.str(kOomScoreAdj);
    return text.text();
  }

  void meet() {
    // That it answers says that it took all of its arguments.
    Qmp(connect("control.sock"), kVmmPatience);
    if (!request_.stack.disk->form.agent) return hand_over(UniqueFd());
    attempt("its system does not answer", [&] {
      GuestLink link(connect("channel.sock"), [&] { look(); });
      const auto until = steady_clock::now() + kSystemPatience;
      link.hello(until);
      link.configure(configuration(), until);
      hand_over(link.release());
      open_file(directory_ / kAgentMark, O_WRONLY | O_CREAT | O_NOFOLLOW, 0600);
    });
  }

  void hand_over(const UniqueFd& port) {
    std::optional<Channel> keeper = Channel::connect(directory_);
    if (!keeper) throw failure("its keeper is gone");
    const int fd = port.get();
    keeper->send(wire::Type::Machine, "", std::span<const int>(&fd, port ? 1 : 0));
    const std::optional<Frame> answer = keeper->receive();
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
  }

  UniqueFd connect(const char* socket) {
    const auto until = steady_clock::now() + kVmmPatience;
    for (;;) {
      try {
        return connect_to_vmm(directory_ / kMachineDirectory / socket, milliseconds(100));
      } catch (const Error&) {
        look();
        if (steady_clock::now() >= until) throw;
      }
    }
  }

  void look() {
    errors_->hear();
    const engine::RunnerStatus status = read_status(directory_);
    if (status.state != engine::SandboxState::Running)
      throw failure(status.reason.empty() ? "its machine ended" : status.reason);
  }

  void explain(Error& error) {
    errors_->hear();
    if (const std::string said = errors_->text(); !said.empty()) error.hint("its VMM said: " + quote(said));
    error.context("its machine did not begin");
  }

  const FullParts& parts_;
  RunnerRequest& request_;
  const SandboxSpec& spec_;
  const fs::path& directory_;
  std::unique_ptr<KeeperLaunch> launched_;  ///< whose end before the machine is handed over undoes it
  std::vector<MachineFile> files_;
  FullMachine machine_;
  std::optional<LastWords> errors_;
};

}  // namespace

Limits limits_of_full_vmm(const Limits& limits) {
  Limits vmm = limits;
  vmm.pids.reset();
  vmm.disk.reset();
  vmm.memory = limits.memory.value_or(kFullMemory) + kFullVmmMemory;
  return vmm;
}

int start_full_machine(const FullParts& parts, RunnerRequest& request) { return FullStarter(parts, request).run(); }

}  // namespace dsec::runners
