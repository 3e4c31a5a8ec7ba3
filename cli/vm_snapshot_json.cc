#include "cli/vm_snapshot_json.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/output.h"

namespace dsec::cli {
namespace {

Json made_json(std::uint64_t seconds) {
  return iso_time(std::chrono::system_clock::time_point(std::chrono::seconds(seconds)));
}

Json misfit_json(const std::string& misfit) { return misfit.empty() ? Json(nullptr) : Json(misfit); }

}  // namespace

Json snapshot_json(const runners::WarmGuestHere& here) {
  const runners::WarmGuest& guest = here.guest;
  return {{"name", guest.name},
          {"sandbox", nullptr},
          {"kernel", guest.kernel},
          {"vmm", guest.vmm},
          {"memory", guest.machine.memory},
          {"cpus", guest.machine.cpus},
          {"pmem", guest.machine.pmem},
          {"made", made_json(guest.made)},
          {"bytes", guest.bytes},
          {"machine", guest.machine.parts},
          {"fits", here.misfit.empty()},
          {"misfit", misfit_json(here.misfit)}};
}

Json snapshot_json(const engine::MemorySnapshot& snapshot, const runners::SavedSandboxHere& here) {
  return {{"name", snapshot.name},
          {"sandbox", snapshot.sandbox},
          {"kernel", here.record.release},
          {"vmm", here.record.vmm},
          {"memory", here.record.machine.memory},
          {"cpus", here.record.machine.cpus},
          {"pmem", here.record.machine.pmem},
          {"made", made_json(snapshot.made)},
          {"bytes", snapshot.bytes},
          {"machine", here.record.machine.parts},
          {"fits", here.misfit.empty()},
          {"misfit", misfit_json(here.misfit)}};
}

}  // namespace dsec::cli
