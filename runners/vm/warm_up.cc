#include "runners/vm/warm_up.h"

#include <chrono>

#include "core/base/error.h"
#include "core/engine/lease.h"
#include "core/engine/sandbox_id.h"
#include "core/engine/sandbox_records.h"
#include "runners/container/guest_place.h"
#include "runners/container/launch.h"
#include "runners/container/program.h"
#include "runners/isolation/cgroups.h"
#include "runners/vm/kernel_store.h"
#include "runners/vm/machine_start.h"
#include "runners/vm/qemu.h"

namespace dsec::runners {
namespace fs = std::filesystem;
using std::chrono::system_clock;
namespace {

constexpr char kSubject[] = "cannot save a guest to begin from";

// What a machine of this host needs, for as long as it is made.
class Workshop {
 public:
  explicit Workshop(const engine::Home& home, const std::string& kernel = {})
      : place_(home.run()),
        cgroups_(home.host_id()),
        program_(load_guest_program()),
        egress_(home.run(), [] { return UniqueFd(); }),
        qemu_(find_qemu()) {
    std::optional<GuestKernel> found = find_guest_kernel(home.root(), kernel);
    if (!found)
      throw failure(kernel.empty() ? "there is no kernel for machines here" : "there is no kernel " + quote(kernel))
          .hint("dsec vm kernel import");
    if (qemu_.empty()) throw failure("there is no qemu-system-x86_64 here").hint("apt install qemu-system-x86");
    kernel_ = *std::move(found);
  }
  const GuestKernel& kernel() const noexcept { return kernel_; }
  const fs::path& qemu() const noexcept { return qemu_; }
  MachineParts parts() {
    return {.place = place_,
            .keepers = keepers_,
            .cgroups = cgroups_,
            .program = program_.get(),
            .dsec = nowhere_,
            .egress = egress_,
            .disks = nullptr,
            .home = {},
            .vmm = qemu_,
            .accelerator = choose_accelerator(qemu_, kernel_.kernel),
            .kernel = kernel_.kernel,
            .initramfs = kernel_.initramfs};
  }

 private:
  GuestPlace place_;
  KeeperSupply keepers_;
  const CgroupHost cgroups_;
  const UniqueFd program_;
  const fs::path nowhere_;
  const Egress egress_;  ///< nothing goes out of a guest before it is told of a sandbox
  fs::path qemu_;
  GuestKernel kernel_;
};

WarmMachine machine_here(Workshop& workshop, const WarmMachine& like) {
  Limits limits;
  limits.memory = like.memory;
  limits.cpus = like.cpus;
  return warm_machine(workshop.parts(), workshop.kernel(), limits, like.pmem);
}

// Its machine is as that of a sandbox, which nobody is ever told of; of it only the state stays.
void save_into(const engine::Home& home, engine::Runner& microvms, Workshop& workshop, const SandboxSpec& spec,
               WarmGuest& guest) {
  engine::SandboxRecords records(home);
  const engine::Lease lease(home.host_id() + engine::random_id(16), engine::ProcessIdentity::self(),
                            system_clock::now(), spec);
  const engine::SandboxRecords::Created made = records.create(lease);
  const auto clean_up = [&] {
    microvms.reclaim(made.directory);
    records.remove(lease.id, "");
  };
  try {
    engine::RunnerRequest request;
    request.id = lease.id;
    request.directory = made.directory;
    request.spec = spec;
    MachineParts parts = workshop.parts();
    parts.pmem = guest.machine.pmem;
    parts.late_drives = true;
    parts.clock = guest.clock;
    save_machine(parts, request);
    guest = keep_warm_guest(home.root(), std::move(guest), saved_files(made.directory));
  } catch (...) {
    const std::exception_ptr failed = std::current_exception();
    try {
      clean_up();
    } catch (const Error&) {
      // The lease stays, and gc finishes what could not be removed now.
    }
    std::rethrow_exception(failed);
  }
  clean_up();
}

}  // namespace

WarmGuest warm_up(const engine::Home& home, engine::Runner& microvms, const Limits& limits, bool pmem) {
  return attempt(kSubject, [&] {
    SandboxSpec spec;
    spec.backend = "microvm";
    spec.limits.memory = limits.memory;
    spec.limits.cpus = limits.cpus;
    spec.read_only = true;
    spec.record = false;
    microvms.check(spec);
    Workshop workshop(home);
    const MachineParts parts = workshop.parts();
    WarmGuest guest;
    guest.machine = warm_machine(parts, workshop.kernel(), spec.limits, pmem);
    guest.kernel = workshop.kernel().release;
    guest.vmm = qemu_version(workshop.qemu());
    guest.boot = host_boot();
    if (parts.accelerator == Accelerator::Tcg) guest.clock = counter_khz();
    guest.made = static_cast<std::uint64_t>(system_clock::to_time_t(system_clock::now()));
    save_into(home, microvms, workshop, spec, guest);
    std::vector<std::string> problems;
    for (const WarmGuest& other : list_warm_guests(home.root(), problems))
      if (!misfit(other, machine_here(workshop, other.machine)).empty()) remove_warm_guest(home.root(), other.name);
    return guest;
  });
}

std::vector<WarmGuestHere> warm_guests_here(const engine::Home& home, std::vector<std::string>& problems) {
  std::vector<WarmGuestHere> told;
  std::vector<WarmGuest> guests = list_warm_guests(home.root(), problems);
  if (guests.empty()) return told;
  std::string none;
  std::optional<Workshop> workshop;
  try {
    workshop.emplace(home);
  } catch (const Error& error) {
    none = error.message();
  }
  for (WarmGuest& guest : guests) {
    std::string why = none;
    if (workshop) why = misfit(guest, machine_here(*workshop, guest.machine));
    told.push_back({std::move(guest), std::move(why)});
  }
  return told;
}

SavedSandboxHere saved_sandbox_here(const engine::Home& home, const fs::path& place) {
  SavedSandboxHere here{read_saved_sandbox(place).record, {}};
  try {
    Workshop workshop(home, here.record.kernel_name);
    Limits limits;
    limits.memory = here.record.machine.memory;
    limits.cpus = here.record.machine.cpus;
    MachineParts parts = workshop.parts();
    parts.pmem = here.record.machine.pmem;
    parts.late_drives = here.record.late_drives;
    MachineRecord now = describe_machine(parts, workshop.kernel(), limits, {});
    now.machine.parts["layers"] = here.record.machine.parts["layers"];
    here.misfit = misfit(here.record, now);
  } catch (const Error& error) {
    here.misfit = error.message();
  }
  return here;
}

}  // namespace dsec::runners
