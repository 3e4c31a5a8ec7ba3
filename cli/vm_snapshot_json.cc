#include "cli/vm_snapshot_json.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/output.h"

namespace dsec::cli {

Json snapshot_json(const runners::WarmGuestHere& here) {
  const runners::WarmGuest& guest = here.guest;
  return {{"name", guest.name},
          {"kernel", guest.kernel},
          {"vmm", guest.vmm},
          {"memory", guest.machine.memory},
          {"cpus", guest.machine.cpus},
          {"pmem", guest.machine.pmem},
          {"made", iso_time(std::chrono::system_clock::time_point(std::chrono::seconds(guest.made)))},
          {"bytes", guest.bytes},
          {"machine", guest.machine.parts},
          {"fits", here.misfit.empty()},
          {"misfit", here.misfit.empty() ? Json(nullptr) : Json(here.misfit)}};
}

}  // namespace dsec::cli
