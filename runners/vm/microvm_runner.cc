#include "runners/vm/microvm_runner.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/signal_name.h"
#include "core/base/units.h"
#include "core/engine/lease.h"
#include "core/engine/memory_saver.h"
#include "core/model/hostname.h"
#include "runners/container/container_runner.h"
#include "runners/container/cpu_class.h"
#include "runners/container/guest_place.h"
#include "runners/container/program.h"
#include "runners/container/sandbox_network.h"
#include "runners/container/spec_checks.h"
#include "runners/container/state_file.h"
#include "runners/container/update.h"
#include "runners/isolation/disk_image.h"
#include "runners/isolation/writable_layer.h"
#include "runners/vm/host_memory.h"
#include "runners/vm/kernel_store.h"
#include "runners/vm/machine_disk.h"
#include "runners/vm/machine_root.h"
#include "runners/vm/machine_save.h"
#include "runners/vm/machine_start.h"
#include "runners/vm/machine_streams.h"
#include "runners/vm/pmem_plan.h"
#include "runners/vm/saved_machine.h"
#include "runners/vm/warm_store.h"
#include "runners/vm/written_copy.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
namespace {

constexpr std::uint64_t kSmallestDisk = 16ull << 20;
// Of the layers' files that a guest sends to be compared with.
constexpr std::uint64_t kMostBelow = 16ull << 30;

[[noreturn]] void refuse(const std::string& what, const std::string& way_out) {
  throw usage_error("a microvm " + what).hint(way_out);
}

class GuestWatch final : public engine::FileWatch {
 public:
  explicit GuestWatch(MachineStream stream) : stream_(std::move(stream)) {
    // From its first word on nothing is missed.
    while (const std::optional<Record> record = take(std::nullopt))
      if (record->kind == channel::kWatchReady) return;
    stream_.finish();
    throw failure("the guest does not watch it");
  }

  std::optional<engine::FileEvent> next(std::optional<milliseconds> timeout) override {
    if (ended_) return std::nullopt;
    const std::optional<Record> record = take(timeout);
    if (!record && !ended_) return std::nullopt;
    if (!record || record->kind >= static_cast<std::uint32_t>(engine::FileEvent::Kind::Ended)) {
      ended_ = true;
      return engine::FileEvent{engine::FileEvent::Kind::Ended, record ? record->path : "", "", false};
    }
    return engine::FileEvent{static_cast<engine::FileEvent::Kind>(record->kind), record->path, record->from,
                             record->directory};
  }

 private:
  struct Record {
    std::uint32_t kind = 0;
    bool directory = false;
    std::string path, from;
  };

  // Empty when `timeout` has passed, or at the end, which sets ended_.
  std::optional<Record> take(std::optional<milliseconds> timeout) {
    for (;;) {
      wire::Reader reader(received_.data(), received_.size());
      Record record;
      record.kind = reader.u32();
      record.directory = reader.u32() != 0;
      const auto path = reader.str(), from = reader.str();
      if (reader.ok()) {
        record.path.assign(path.data, path.size);
        record.from.assign(from.data, from.size);
        received_.erase(0, received_.size() - reader.left());
        return record;
      }
      if (received_.size() > 1 << 16) throw failure("the guest tells of an event that does not end");
      const std::optional<std::string> more = stream_.next(timeout);
      if (!more) return std::nullopt;
      if (more->empty()) {
        ended_ = true;
        return std::nullopt;
      }
      received_ += *more;
    }
  }

  MachineStream stream_;
  std::string received_;
  bool ended_ = false;
};

class MicrovmRunner final : public engine::Runner, public engine::WrittenCopier, public engine::MemorySaver {
 public:
  MicrovmRunner(const engine::Home& home, engine::Runner& containers, engine::MachineDisks& disks, fs::path dsec)
      : home_(home),
        containers_(containers),
        disks_(disks),
        place_(home.run()),
        dsec_(std::move(dsec)),
        egress_(home.run(), [this] { return open_keepers_procs(home_); }) {}

  Layers wanted_layers() const override { return Layers::Files; }

  void check(SandboxSpec& spec) override {
    if (::geteuid() != 0)
      throw failure("running sandboxes needs root").hint("sudo dsec …; importing, building and publishing do not");
    signal_number(spec.config.stop_signal);
    if (!spec.hostname.empty()) check_hostname(spec.hostname);
    const char* const in_container = "--backend container";
    if (!spec.binds.empty())
      refuse("shares no filesystem with the host, so -v is not possible",
             "dsec cp, which copies, or " + std::string(in_container));
    if (!spec.devices.empty() || spec.gpus) refuse("has no devices of the host", in_container);
    if (spec.network == NetworkMode::Host) refuse("has no network of the host", in_container);
    if (spec.userns == UserNamespace::Host)
      refuse("has users of its own: --userns host means nothing to it", in_container);
    check_tmpfs(spec);
    std::string why;
    if (!cgroups().has_lifecycle(&why)) throw failure("sandboxes need a v2 control group: " + why);
    check_memory(spec.limits);
    cgroups().check(limits_of_vmm(spec.limits));
    spec.limits.class_by = means_of_class(cgroups(), spec.limits.cpu_class);
    if (spec.limits.disk && *spec.limits.disk < kSmallestDisk)
      throw usage_error("a disk of " + format_size(*spec.limits.disk) + " is too small for a machine")
          .hint("use at least " + format_size(kSmallestDisk));
    if (!spec.read_only) attempt("cannot make the disk of a machine", [] { check_disk_images(); });
    const GuestKernel guest = kernel();
    (void)vmm();
    if (spec.network != NetworkMode::Policy) return;
    if (!guest.carries_egress)
      throw failure("the kernel " + quote(guest.name) + " of machines has not what network policies need (nft_tproxy)")
          .hint("dsec vm kernel import, again or of a kernel that has it");
    egress_.check(spec.network_plan);
  }

  engine::RunnerStatus start(engine::RunnerRequest request) override {
    return started(request.directory, [&] { return begin_machine(request); });
  }
  engine::RunnerStatus restore(engine::RunnerRequest request, const fs::path& saved) override {
    return started(request.directory, [&] { return restore_machine(request, saved); });
  }

  void save_memory(const fs::path& directory, const fs::path& into) override {
    const std::optional<SandboxRecord> record = read_record(directory);
    const bool paused = record && record->status.state == engine::SandboxState::Paused;
    // Only what runs can be asked.
    if (paused) containers_.resume(directory);
    ensure_disk(directory);
    save_running_machine(disks_, directory, into, vmm());
    if (paused) containers_.pause(directory);
  }

  // What a keeper does is the same for all.
  engine::RunnerStatus status(const fs::path& directory) override { return containers_.status(directory); }
  std::unique_ptr<engine::ExecStream> exec(const fs::path& directory, const ExecSpec& spec) override {
    // Not by containers_, for which the authority is a file of the sandbox's.
    if (living_keeper(directory)) {
      with_authority(directory, [&] { egress_.ensure(directory, [&] { return pidfd_of_init(directory); }); });
      ensure_disk(directory);
    }
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
    return containers_.open_session(directory, spec);
  }
  std::unique_ptr<engine::ExecStream> run_in_session(const fs::path& directory, const std::string& session,
                                                     const SessionCommand& command) override {
    return containers_.run_in_session(directory, session, command);
  }
  std::vector<engine::SessionInfo> sessions(const fs::path& directory) override {
    return containers_.sessions(directory);
  }
  void close_session(const fs::path& directory, const std::string& session) override {
    containers_.close_session(directory, session);
  }
  bool wait(const fs::path& directory, std::optional<milliseconds> timeout) override {
    return containers_.wait(directory, timeout);
  }
  // The guest has some time of its own to write its disk out.
  void stop(const fs::path& directory, milliseconds grace) override { containers_.stop(directory, grace); }
  void pause(const fs::path& directory) override { containers_.pause(directory); }
  void resume(const fs::path& directory) override { containers_.resume(directory); }
  void logs(const fs::path& directory, const engine::LogOptions& options, const engine::LogSink& sink) override {
    containers_.logs(directory, options, sink);
  }
  engine::NetworkReport network(const fs::path& directory) override { return containers_.network(directory); }
  std::string network_log(const fs::path& directory, std::uint64_t from) override {
    return containers_.network_log(directory, from);
  }
  void set_network(const fs::path& directory, const NetworkPlan& plan) override {
    with_authority(directory, [&] { containers_.set_network(directory, plan); });
  }

  void release(const fs::path& directory) override { containers_.release(directory); }
  void reclaim(const fs::path& directory) override {
    containers_.reclaim(directory);
    const MachineSnapshot saved = saved_files(directory);
    for (const fs::path& path : {directory / kMachineDirectory, saved.state, saved.memory}) remove_tree(path);
    for (const char* name : MachineDisk::kFiles) remove_tree(directory / name);
  }
  void release_shared() override { keepers_.clear(); }

  void update(const fs::path& directory, const SandboxSpec& before, SandboxSpec& after) override {
    const char* const again = "fork it, or make it again, with the limits that it needs";
    if (before.limits.memory != after.limits.memory) refuse("keeps the memory that it was made with", again);
    if (before.limits.pids != after.limits.pids) refuse("keeps its limit of tasks", again);
    if (before.limits.disk != after.limits.disk) refuse("keeps the disk that it was made with", again);
    if (machine_cpus(before.limits) < machine_cpus(after.limits))
      refuse("has no more processors than it was made with", again);
    SandboxSpec vmm_before = before, vmm_after = after;
    vmm_before.limits = limits_of_vmm(before.limits);
    vmm_after.limits = limits_of_vmm(after.limits);
    update_sandbox(cgroups(), directory, vmm_before, vmm_after);
    after.limits.class_by = vmm_after.limits.class_by;
  }

  std::unique_ptr<engine::Stillness> hold_still(const fs::path&) override {
    refuse("keeps what it writes on a disk that is not read here", "dsec snapshot has its guest send a copy");
  }
  UniqueFd open_writable_layer(const fs::path&) override {
    refuse("keeps what it writes on a disk that is not read here", "dsec diff and dsec cp ask its guest");
  }
  engine::WrittenCopy copy_written(const fs::path& directory, engine::WrittenBelow below) override {
    const std::optional<engine::Lease> lease = engine::Lease::read(directory);
    if (!lease) throw failure("the sandbox is gone");
    const std::optional<SandboxRecord> record = read_record(directory);
    const bool paused = record && record->status.state == engine::SandboxState::Paused;
    // What its layers have is no larger than they are, and nobody else says how large that may be.
    const bool included = below == engine::WrittenBelow::Included;
    const std::uint64_t most = lease->spec.limits.disk.value_or(kMachineDisk) + (included ? kMostBelow : 0);
    engine::WrittenCopy copy = copy_written_layer(directory, included ? Below::Included : Below::Left, most);
    // Only what runs can be asked.
    if (paused) containers_.pause(directory);
    return copy;
  }

  UniqueFd connect(const fs::path& directory, std::uint16_t port) override {
    MachineStream stream(directory, channel::Service::Connect, FrameText().u16(port), MachineStream::Life::Detached);
    return stream.release();
  }

  std::unique_ptr<engine::FileWatch> watch(const fs::path& directory, const std::string& path,
                                           bool recursive) override {
    return std::make_unique<GuestWatch>(
        MachineStream(directory, channel::Service::Watch, FrameText().u32(recursive ? 1 : 0).str(path)));
  }

  engine::SandboxStats stats(const fs::path& directory) override {
    const std::optional<engine::Lease> lease = engine::Lease::read(directory);
    if (!lease) throw failure("the sandbox is gone");
    engine::SandboxStats stats;
    const std::optional<SandboxRecord> record = read_record(directory);
    // The guest of one that is paused stands still, too.
    if (record && record->status.state == engine::SandboxState::Paused) {
      const CgroupStats used = SandboxCgroups::open(cgroups(), lease->id).stats();
      stats.memory_bytes = used.memory_bytes;
      stats.memory_peak = used.memory_peak;
      stats.cpu_usec = used.cpu_usec;
      stats.memory_before_pause = record->memory_before_pause;
    } else if (living_keeper(directory)) {
      stats = machine_stats(directory);
    }
    if (record && living_keeper(directory)) stats.host_memory = host_memory(record->init_pid);
    stats.memory_limit = lease->spec.limits.memory.value_or(kMachineMemory);
    stats.pids_limit = lease->spec.limits.pids.value_or(0);
    stats.disk_limit = lease->spec.read_only ? 0 : lease->spec.limits.disk.value_or(kMachineDisk);
    return stats;
  }

  std::vector<engine::Change> diff(const fs::path& directory, const engine::OpenLayers&) override {
    std::vector<engine::Change> changes;
    std::string received;
    MachineStream stream(directory, channel::Service::Diff, FrameText());
    stream.receive([&](std::string_view bytes) {
      received += bytes;
      for (;;) {
        wire::Reader reader(received.data(), received.size());
        const std::uint32_t letter = reader.u32();
        const auto path = reader.str();
        if (!reader.ok()) break;
        using Kind = engine::Change::Kind;
        if (letter != 'A' && letter != 'C' && letter != 'D') throw failure("the guest tells of an unknown change");
        changes.push_back({letter == 'A'   ? Kind::Added
                           : letter == 'C' ? Kind::Modified
                                           : Kind::Deleted,
                           std::string(path.data, path.size)});
        received.erase(0, received.size() - reader.left());
      }
      if (received.size() > 1 << 16) throw failure("the guest tells of a path that does not end");
    });
    if (!received.empty()) throw failure("the guest's list of changes ends within one");
    return changes;
  }

  void copy_out(const fs::path& directory, const engine::OpenLayers&, const std::string& path, int fd) override {
    attempt("cannot copy out of the sandbox", [&] {
      MachineStream(directory, channel::Service::CopyOut, FrameText().str(path).str("").u64(channel::kNoOwner))
          .receive([&](std::string_view bytes) { write_all(fd, bytes); });
    });
  }
  void copy_in(const fs::path& directory, const engine::OpenLayers&, const std::string& path, int fd) override {
    attempt("cannot copy into the sandbox", [&] {
      MachineStream(directory, channel::Service::CopyIn, FrameText().str(path).str("").u64(channel::kNoOwner))
          .send_all(fd);
    });
  }

 private:
  // Whoever killed all that served it has left the machine waiting for its disk.
  void ensure_disk(const fs::path& directory) {
    MachineDisk disk(disks_, directory);
    if (!disk.exists()) return;
    attempt("what serves its disk was gone, and cannot be started again",
            [&] { disk.serve(SandboxCgroups::open(cgroups(), directory.filename().native())); });
  }

  // What attaches a sandbox anew gives it another authority, which its guest is told.
  template <typename Action>
  static void with_authority(const fs::path& directory, const Action& action) {
    const std::string before = read_authority(directory);
    action();
    if (const std::string now = read_authority(directory); now != before)
      rewrite_machine_file(directory, kCaInside, now);
  }

  static void check_memory(const Limits& limits) {
    constexpr std::uint64_t kMebibyte = 1ull << 20, kLeast = 96 * kMebibyte;
    if (!limits.memory) return;
    if (*limits.memory < kLeast)
      throw usage_error("a machine with " + format_size(*limits.memory) + " of memory cannot begin")
          .hint("use at least " + format_size(kLeast));
    if (*limits.memory % kMebibyte != 0)
      throw usage_error("the memory of a machine is a multiple of 1 MiB, which " + std::to_string(*limits.memory) +
                        " bytes are not");
  }

  MachineParts machine_parts(const GuestKernel& guest) {
    const fs::path qemu = vmm();
    return {.place = place_,
            .keepers = keepers_,
            .cgroups = cgroups(),
            .program = program(),
            .dsec = dsec_,
            .egress = egress_,
            .disks = &disks_,
            .home = home_.root(),
            .vmm = qemu,
            .accelerator = choose_accelerator(qemu, guest.kernel),
            .kernel = guest.kernel,
            .initramfs = guest.initramfs};
  }

  void choose_images(MachineParts& parts, const engine::RunnerRequest& request) const {
    parts.mapped = choose_mapped(request.spec.pmem, request.stack.images, home_.store(),
                                 request.spec.limits.memory.value_or(kMachineMemory));
    parts.pmem = std::find(parts.mapped.begin(), parts.mapped.end(), true) != parts.mapped.end();
  }

  // `work` gives the pid of the keeper.
  template <typename Work>
  engine::RunnerStatus started(const fs::path& directory, const Work& work) {
    try {
      engine::RunnerStatus status;
      status.state = engine::SandboxState::Running;
      status.keeper_pid = work();
      return status;
    } catch (...) {
      const std::exception_ptr failed = std::current_exception();
      try {
        reclaim(directory);
      } catch (const Error&) {
        // The lease stays; gc tries again.
      }
      std::rethrow_exception(failed);
    }
  }

  // Its kernel begins, or goes on from where another has begun.
  int begin_machine(engine::RunnerRequest& request) {
    const GuestKernel guest = kernel();
    MachineParts parts = machine_parts(guest);
    choose_images(parts, request);
    const WarmMachine machine = warm_machine(parts, guest, request.spec.limits, parts.pmem);
    const std::optional<WarmGuest> warm = find_warm_guest(home_.root(), machine);
    if (warm) {
      parts.warm = warm->files;
      parts.late_drives = true;
    } else if (parts.accelerator == Accelerator::Tcg) {
      parts.clock = counter_khz();
    }
    MachineRecord record = describe(parts, guest, request);
    record.clock = warm ? warm->clock : parts.clock;
    record.boot = warm ? warm->boot : host_boot();
    write_machine_record(request.directory, record);
    try {
      return start_machine(parts, request);
    } catch (RestoreFailed& error) {
      // Another may have taken its place meanwhile.
      const std::optional<WarmGuest> there = find_warm_guest(home_.root(), machine);
      if (there && there->made == warm->made && remove_warm_guest(home_.root(), warm->name))
        error.hint("the saved guest " + warm->name + " was removed: the next one begins without it");
      throw;
    }
  }

  int restore_machine(engine::RunnerRequest& request, const fs::path& place) {
    return attempt("it cannot go on from what was saved", [&] {
      const SavedSandbox saved = read_saved_sandbox(place);
      const MachineRecord& then = saved.record;
      if (!request.spec.read_only && saved.disk.empty()) throw failure("its disk is gone");
      const std::optional<GuestKernel> guest = find_guest_kernel(home_.root(), then.kernel_name);
      if (!guest)
        throw failure("the kernel " + quote(then.kernel_name) + " that it has is not here any more")
            .hint("dsec vm kernel import --name " + then.kernel_name);
      MachineParts parts = machine_parts(*guest);
      choose_images(parts, request);
      parts.warm = saved.files;
      parts.late_drives = then.late_drives;
      parts.has_sandbox = true;
      parts.disk = saved.disk;
      MachineRecord record = describe(parts, *guest, request);
      check_fit(then, record);
      record.clock = then.clock;
      record.boot = then.boot;
      write_machine_record(request.directory, record);
      const int keeper = start_machine(parts, request);
      // The keeper knows those that it was told of.
      (void)containers_.sessions(request.directory);
      return keeper;
    });
  }

  static MachineRecord describe(const MachineParts& parts, const GuestKernel& guest,
                                const engine::RunnerRequest& request) {
    return describe_machine(parts, guest, request.spec.limits, request.stack.images);
  }

  static void check_fit(const MachineRecord& then, const MachineRecord& now) {
    const std::string why = misfit(then, now);
    if (why.empty()) return;
    throw failure("it was saved with QEMU " + then.vmm + " and kernel " + then.release)
        .context("memory means something only to the machine that it was of, and here is " + why)
        .hint("dsec vm save, again, of a sandbox that runs here")
        .hint("dsec snapshot, which keeps files alone");
  }

  GuestKernel kernel() const {
    if (std::optional<GuestKernel> found = find_guest_kernel(home_.root())) return *std::move(found);
    throw failure("there is no kernel for machines here").hint("dsec vm kernel import");
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
  engine::MachineDisks& disks_;
  GuestPlace place_;
  const fs::path dsec_;
  std::mutex mutex_;
  std::optional<CgroupHost> cgroups_;
  UniqueFd program_;
  KeeperSupply keepers_;
  const Egress egress_;
};

}  // namespace

std::unique_ptr<engine::Runner> make_microvm_runner(const engine::Home& home, engine::Runner& containers,
                                                    engine::MachineDisks& disks, const fs::path& dsec) {
  return std::make_unique<MicrovmRunner>(home, containers, disks, dsec);
}

}  // namespace dsec::runners
