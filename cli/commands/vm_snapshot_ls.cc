#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/vm_snapshot_json.h"
#include "cli/wiring.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

void run(Invocation& call) {
  std::vector<std::string> problems;
  const std::vector<runners::WarmGuestHere> all = runners::warm_guests_here(call.wiring().home(), problems);
  for (const std::string& problem : problems) call.progress().warn(problem);
  if (call.out().json()) {
    for (const runners::WarmGuestHere& here : all) call.out().json_line(snapshot_json(here));
    return;
  }
  Table table({"NAME", "KERNEL", "MEMORY", "CPUS", "PMEM", "SIZE", "MADE", "FITS"});
  for (const auto& [guest, misfit] : all)
    table.row({guest.name, printable(guest.kernel), format_size(guest.machine.memory),
               std::to_string(guest.machine.cpus), guest.machine.pmem ? "yes" : "no", format_size(guest.bytes),
               age(std::chrono::system_clock::time_point(std::chrono::seconds(guest.made))),
               misfit.empty() ? "yes" : "no: " + printable(misfit)});
  call.out().table(table);
}

}  // namespace

void add_vm_snapshot_ls(Command& group) {
  Command& verb = group.verb("ls", "List saved guests, and whether microVMs go on from them here");
  verb.note("With -o json, one object a line.");
  verb.runs(run);
}

}  // namespace dsec::cli
