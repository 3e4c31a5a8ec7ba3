#include "runners/vm/machine_start.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <optional>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/mount.h"
#include "core/base/signal_name.h"
#include "runners/container/channel.h"
#include "runners/container/sandbox_network.h"
#include "runners/container/start_request.h"
#include "runners/container/state_file.h"
#include "runners/isolation/capabilities.h"
#include "runners/isolation/id_map.h"
#include "runners/isolation/resource_limits.h"
#include "runners/isolation/sandbox_paths.h"
#include "runners/isolation/seccomp_filter.h"
#include "runners/vm/guest_link.h"
#include "runners/vm/last_words.h"
#include "runners/vm/machine_disk.h"
#include "runners/vm/machine_plan.h"
#include "runners/vm/machine_root.h"
#include "runners/vm/pmem_plan.h"
#include "runners/vm/vmm_socket.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using engine::RunnerRequest;
using std::chrono::steady_clock;
namespace {

// Emulated on a busy host, a guest needs half a minute at worst.
constexpr std::chrono::seconds kGuestPatience{120};
constexpr std::chrono::seconds kVmmPatience{20};
// One that was saved has nothing left to do but to answer.
constexpr std::chrono::seconds kWarmPatience{30};
// Free pages are reported two seconds after they became free.
constexpr std::chrono::seconds kSettling{4};
// Code and data of QEMU, what it translates, and what the kernel counts for its files.
constexpr std::uint64_t kVmmMemory = 256ull << 20;
// No file is there: see machine_memory.cc of the keeper.
constexpr char kMemoryInside[] = "/guest/memory";

std::string seccomp_program() { return {reinterpret_cast<const char*>(kSeccompProgram), sizeof kSeccompProgram}; }

std::vector<std::string> read_only_paths() { return {std::begin(kReadOnlyPaths), std::end(kReadOnlyPaths)}; }

class MachineStarter {
 public:
  MachineStarter(const MachineParts& parts, RunnerRequest& request)
      : parts_(parts), request_(request), spec_(request.spec), directory_(request.directory) {}

  int run() {
    const int pid = start_vmm();
    // Its authority is among the files of the guest.
    if (has_policy()) attach_egress();
    with_last_words("its machine did not begin", [&] { meet_guest(); });
    return pid;
  }

  void save() {
    start_vmm();
    with_last_words("its machine cannot be saved", [&] { save_guest(); });
  }

 private:
  int start_vmm() {
    launched_ = parts_.keepers.take(parts_.cgroups, parts_.program, directory_);
    KeeperLaunch& keeper = *launched_;
    const IdMap map = id_map_for(request_.id, host_id_range());
    NewUserNamespace user_namespace(map, NewUserNamespace::Network::With);
    const SandboxCgroups cgroups = attempt("cannot make its control groups", [&] {
      return SandboxCgroups::create(parts_.cgroups, request_.id, limits_of_vmm(spec_.limits));
    });
    plan_files();
    MachineRoot root = attempt("cannot make what its VMM sees", [&] {
      return make_machine_root(parts_.place, directory_, user_namespace.fd(), parts_.accelerator, files_);
    });
    if (!spec_.read_only)
      attempt("cannot make its disk", [&] {
        MachineDisk disk(*parts_.disks, directory_);
        if (parts_.has_sandbox)
          disk.create_from(parts_.disk);
        else
          disk.create_empty(parts_.home, spec_.limits.disk.value_or(kMachineDisk));
        disk.serve(cgroups);
      });
    auto [errors, errors_end] = make_pipe();
    errors_.emplace(std::move(errors));
    open_console();
    const UniqueFd memory = is_warm() ? open_file(parts_.warm.memory, O_RDONLY | O_NOFOLLOW) : UniqueFd();
    send_start(keeper, start_request(cgroups, user_namespace.fd(), map, errors_end.get(), memory.get()));
    errors_end.reset();
    const UniqueFd network = user_namespace.take_network();
    send_machine_root(keeper, root, network.get());
    root.parts.clear();
    const int pid = await_start(keeper);
    keeper.finish();
    return pid;
  }

  // In the order in which the guest sees them: an image's devices are named by the serial numbers of drives.
  void plan_files() {
    files_ = {{parts_.kernel, "/guest/kernel"}, {parts_.initramfs, "/guest/initramfs"}};
    const auto add = [&](const fs::path& source, const std::string& id) {
      const std::string target = "/drives/" + id;
      files_.push_back({source, target});
      machine_.drives.push_back({.id = id, .file = target});
    };
    for (std::size_t i = 0; i < request_.stack.images.size(); ++i) {
      const engine::ImageFiles& image = request_.stack.images[i];
      const std::string name = "l" + std::to_string(i);
      std::vector<std::string>& devices = images_.emplace_back();
      if (parts_.mapped.at(i)) {
        devices = {add_pmem(image.meta, name + "m"), add_pmem(*image.data, name + "d")};
        continue;
      }
      devices.push_back(name + "m");
      add(image.meta, devices.back());
      if (!image.data) continue;
      devices.push_back(name + "d");
      add(*image.data, devices.back());
    }
    if (!spec_.read_only) machine_.drives.push_back(MachineDisk::drive("disk"));
    const unsigned cpus = machine_cpus(spec_.limits);
    const std::uint64_t memory = spec_.limits.memory.value_or(kMachineMemory);
    std::vector<MachineDrive> drives = std::move(machine_.drives);
    machine_ = parts_.late_drives ? warm_spec(memory, cpus, parts_.pmem) : plain_spec(memory, cpus, parts_.pmem);
    machine_.pmem = std::move(pmem_);
    // Those of a saved guest lie in the first of the places that it has.
    for (std::size_t i = drives.size(); i < machine_.drives.size(); ++i) drives.push_back(machine_.drives[i]);
    machine_.drives = std::move(drives);
    machine_.restores = is_warm();
    if (is_warm()) machine_.saved_memory = kMemoryInside;
    if (parts_.clock != 0) machine_.command_line += " " + clock_words(parts_.clock);
  }

  // The guest numbers them as they come.
  std::string add_pmem(const fs::path& source, const std::string& id) {
    const std::string target = "/drives/" + id;
    files_.push_back({source, target, false});
    pmem_.push_back({.id = id, .file = target, .size = make_mappable(source)});
    return "/dev/pmem" + std::to_string(pmem_.size() - 1);
  }

  // A pipe that is read while the guest begins, and breaks then: a guest can fill no disk of the host with it.
  void open_console() {
    const fs::path place = directory_ / kMachineDirectory / "console";
    if (::mkfifo(place.c_str(), 0600) != 0 && errno != EEXIST) throw system_error("make its console");
    console_.emplace(open_file(place, O_RDONLY | O_NONBLOCK | O_NOFOLLOW));
  }

  bool is_warm() const { return !parts_.warm.state.empty(); }
  bool has_policy() const { return spec_.network == NetworkMode::Policy; }
  bool has_authority() const { return has_policy() && spec_.network_plan.intercept_tls; }

  // In the network namespace of the VMM, where the keeper sends what the guest's sandbox does.
  void attach_egress() {
    if (spec_.network_plan.intercept_tls)
      open_file(directory_ / kCaFile, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
    parts_.egress.attach(directory_, request_.trajectory, spec_.network_plan, pidfd_of_init(directory_).get());
  }

  std::string hostname() const { return spec_.hostname.empty() ? request_.id : spec_.hostname; }
  std::string hosts() const {
    return "127.0.0.1\tlocalhost " + hostname() + "\n::1\tlocalhost ip6-localhost ip6-loopback\n";
  }
  std::vector<std::string> environment() const {
    std::vector<std::string> env{"HOSTNAME=" + hostname()};
    if (has_policy()) {
      const std::vector<std::string> proxy = egress_environment(hostname(), spec_.network_plan);
      env.insert(env.end(), proxy.begin(), proxy.end());
    }
    env.insert(env.end(), spec_.config.env.begin(), spec_.config.env.end());
    return env;
  }

  // No capability is the VMM's, and what the kernel kills for lack of memory is the guest's to count: what commands may
  // do is told to the guest.
  StartRequest start_request(const SandboxCgroups& cgroups, int user_namespace, const IdMap& map, int errors,
                             int memory) {
    return {.sandbox = request_,
            .cgroups = cgroups,
            .flags = wire::kStartUserNamespace | wire::kStartMachine | (has_policy() ? wire::kStartEgress : 0u),
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
            .read_only_paths = read_only_paths(),
            .dsec = parts_.dsec,
            .machine = make_qemu(parts_.vmm, parts_.accelerator)->command(machine_),
            .machine_errors = errors,
            .machine_memory = memory,
            .machine_memory_path = kMemoryInside};
  }

  std::string configuration() const {
    FrameText text;
    text.u32(channel::kVersion);
    text.u32((spec_.read_only ? channel::kReadOnly : 0u) | (has_policy() ? channel::kEgress : 0u));
    text.str(request_.id).str(hostname()).str(spec_.machine_id);
    text.strs(environment()).str(spec_.config.workdir).str(spec_.config.user);
    text.u32(static_cast<std::uint32_t>(signal_number(spec_.config.stop_signal)));
    // Hello has waited at the channel while the guest began.
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    text.u64(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
    text.u64(kSandboxCapabilities);
    text.str(seccomp_program()).strs(masked_paths()).strs(read_only_paths());
    text.u32(std::size(kResourceLimits));
    for (const ResourceLimit& limit : kResourceLimits)
      text.u32(static_cast<std::uint32_t>(limit.resource)).u64(limit.soft).u64(limit.hard);
    text.str(kOomScoreAdj);
    text.u32(static_cast<std::uint32_t>(images_.size()));
    for (const std::vector<std::string>& devices : images_) text.strs(devices);
    text.str(spec_.read_only ? "" : "disk");
    std::vector<std::string> limits;
    if (spec_.limits.pids) limits.push_back("pids.max=" + std::to_string(*spec_.limits.pids));
    text.strs(limits);
    text.u32(static_cast<std::uint32_t>(spec_.tmpfs.size()));
    for (const TmpfsMount& mount : spec_.tmpfs) text.str(mount.target).u64(mount.size);
    const std::string name = hostname();
    text.u32(has_authority() ? 4 : 3);
    text.str("/etc/hostname").str(name + "\n");
    text.str("/etc/hosts").str(hosts());
    text.str("/etc/resolv.conf").str(has_policy() ? egress_resolv_conf() : "");
    if (has_authority()) text.str(kCaInside).str(read_authority(directory_));
    text.u32(0);
    return text.text();
  }

  // What the keeper says of an end that the channel told first; empty: it goes on, or nobody knows more.
  std::string reason_of_end() const {
    for (int look = 0; look < 100; ++look) {
      const engine::RunnerStatus status = read_status(directory_);
      if (status.state == engine::SandboxState::Stopped || status.state == engine::SandboxState::Failed)
        return status.reason == "its machine ended" ? "" : status.reason;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return "";
  }

  void look() {
    errors_->hear();
    console_->hear();
    const engine::RunnerStatus status = read_status(directory_);
    if (status.state != engine::SandboxState::Running)
      throw failure(status.reason.empty() ? "its machine ended" : status.reason);
  }

  template <typename Work>
  void with_last_words(const char* attempted, const Work& work) {
    const auto explain = [&](Error& error) {
      if (const std::string why = reason_of_end(); !why.empty()) error = failure(why);
      errors_->hear();
      console_->hear();
      if (const std::string said = errors_->text(); !said.empty()) error.hint("its VMM said: " + quote(said));
      if (const std::string said = console_->text(); !said.empty())
        error.hint("its kernel's last words: " + quote(said));
      error.context(attempted);
    };
    try {
      work();
    } catch (const RestoreFailed& failed) {
      Error error = failed;
      explain(error);
      throw RestoreFailed(std::move(error));
    } catch (Error& error) {
      explain(error);
      throw;
    }
    console_.reset();
  }

  std::unique_ptr<MachineControl> control() const {
    return make_qemu(parts_.vmm, parts_.accelerator)
        ->control(directory_ / kMachineDirectory / "control.sock", kVmmPatience);
  }

  // Until its sandbox runs, and its keeper has the channel.
  void meet_guest() {
    // Of a saved guest the other end was there, too: so it need not notice that it is another.
    GuestLink link(connect(), [&] { look(); });
    const bool warm = is_warm();
    const auto until = steady_clock::now() + (warm ? kWarmPatience : kGuestPatience);
    const auto begin = [&] {
      if (warm) {
        const std::unique_ptr<MachineControl> machine = control();
        machine->load(parts_.warm);
        machine->resume();
      }
      link.hello(until);
    };
    try {
      begin();
    } catch (const Error& error) {
      if (warm) throw RestoreFailed(error);
      throw;
    }
    const auto ready_until = steady_clock::now() + kGuestPatience;
    if (parts_.has_sandbox) {
      renew(link, ready_until);
    } else {
      link.configure(configuration(), ready_until);
    }
    const UniqueFd ready = link.release();
    std::optional<Channel> keeper = Channel::connect(directory_);
    if (!keeper) throw failure("its keeper is gone");
    const int fd = ready.get();
    keeper->send(wire::Type::Machine, "", std::span<const int>(&fd, 1));
    const std::optional<Frame> answer = keeper->receive();
    if (answer->type == wire::Type::Failed) throw keeper_error(*answer);
    if (parts_.has_sandbox) thaw(*keeper);
  }

  // Nothing in it has run since it was saved, and nothing does before it is one of its own.
  void renew(GuestLink& link, GuestLink::Deadline until) {
    link.rewrite("/etc/hosts", hosts(), until);
    if (has_authority()) link.rewrite(kCaInside, read_authority(directory_), until);
    link.renew(spec_.machine_id, hostname(), environment(), until);
  }

  // By the keeper, who hears what it says from then on.
  static void thaw(Channel& keeper) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const Frame answer =
        request(keeper, wire::Type::Control,
                FrameText()
                    .u16(static_cast<std::uint16_t>(channel::Type::Thaw))
                    .u64(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()))
                    .text(),
                kGuestPatience);
    wire::Reader reader = answer.reader();
    if (answer.type != wire::Type::Controlled || static_cast<channel::Type>(reader.u16()) != channel::Type::Done)
      throw failure("its guest does not go on");
  }

  void save_guest() {
    GuestLink link(connect(), [&] { look(); });
    const auto until = steady_clock::now() + kGuestPatience;
    link.hello(until);
    // What its kernel does not use goes back meanwhile, and takes no room in the file.
    for (const auto end = steady_clock::now() + kSettling; steady_clock::now() < end; look())
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    link.quiesce(until);
    const std::unique_ptr<MachineControl> machine = control();
    machine->pause();
    machine->save(saved_files(directory_));
  }

  UniqueFd connect() {
    const auto until = steady_clock::now() + kVmmPatience;
    for (;;) {
      try {
        return connect_to_vmm(directory_ / kMachineDirectory / "channel.sock", std::chrono::milliseconds(100));
      } catch (const Error&) {
        look();
        if (steady_clock::now() >= until) throw;
      }
    }
  }

  const MachineParts& parts_;
  RunnerRequest& request_;
  const SandboxSpec& spec_;
  const fs::path& directory_;
  std::unique_ptr<KeeperLaunch> launched_;
  std::vector<MachineFile> files_;
  std::vector<std::vector<std::string>> images_;  ///< of each its devices
  std::vector<MachinePmem> pmem_;
  MachineSpec machine_;
  std::optional<LastWords> errors_, console_;
};

}  // namespace

unsigned machine_cpus(const Limits& limits) {
  const unsigned host = std::max(1u, std::thread::hardware_concurrency());
  const double wanted = limits.cpus ? std::ceil(*limits.cpus) : 2;
  return std::clamp(static_cast<unsigned>(std::max(wanted, 1.0)), 1u, std::min(host, 32u));
}

Limits limits_of_vmm(const Limits& limits) {
  Limits vmm = limits;
  vmm.pids.reset();
  vmm.disk.reset();
  vmm.memory = limits.memory.value_or(kMachineMemory) + kVmmMemory;
  return vmm;
}

MachineSnapshot saved_files(const fs::path& directory) {
  return {directory / "saved-state", directory / "saved-memory"};
}

int start_machine(const MachineParts& parts, RunnerRequest& request) { return MachineStarter(parts, request).run(); }

void save_machine(const MachineParts& parts, RunnerRequest& request) { MachineStarter(parts, request).save(); }

}  // namespace dsec::runners
