#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/vm_snapshot_json.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/memory_snapshots.h"

namespace dsec::cli {
namespace {

struct SavedSandbox {
  engine::MemorySnapshot snapshot;
  runners::SavedSandboxHere here;
};

std::vector<SavedSandbox> saved_sandboxes(const engine::Home& home, std::vector<std::string>& problems) {
  std::vector<SavedSandbox> saved;
  for (engine::MemorySnapshot& snapshot : engine::MemorySnapshots(home).list(problems)) {
    try {
      runners::SavedSandboxHere here = runners::saved_sandbox_here(home, snapshot.place);
      saved.push_back({std::move(snapshot), std::move(here)});
    } catch (const Error& error) {
      problems.push_back("the memory snapshot " + snapshot.name + " cannot be used: " + error.message());
    }
  }
  return saved;
}

void run(Invocation& call) {
  std::vector<std::string> problems;
  const std::vector<runners::WarmGuestHere> guests = runners::warm_guests_here(call.wiring().home(), problems);
  const std::vector<SavedSandbox> sandboxes = saved_sandboxes(call.wiring().home(), problems);
  for (const std::string& problem : problems) call.progress().warn(problem);
  if (call.out().json()) {
    for (const runners::WarmGuestHere& here : guests) call.out().json_line(snapshot_json(here));
    for (const SavedSandbox& saved : sandboxes) call.out().json_line(snapshot_json(saved.snapshot, saved.here));
    return;
  }
  Table table({"NAME", "SANDBOX", "KERNEL", "MEMORY", "CPUS", "PMEM", "SIZE", "MADE", "FITS"});
  const auto add = [&](const std::string& name, const std::string& sandbox, const std::string& kernel,
                       const runners::WarmMachine& machine, std::uint64_t bytes, std::uint64_t made,
                       const std::string& misfit) {
    table.row({name, sandbox, printable(kernel), format_size(machine.memory), std::to_string(machine.cpus),
               machine.pmem ? "yes" : "no", format_size(bytes),
               age(std::chrono::system_clock::time_point(std::chrono::seconds(made))),
               misfit.empty() ? "yes" : "no: " + printable(misfit)});
  };
  for (const auto& [guest, misfit] : guests)
    add(guest.name, "-", guest.kernel, guest.machine, guest.bytes, guest.made, misfit);
  for (const auto& [snapshot, here] : sandboxes)
    add(snapshot.name, snapshot.sandbox, here.record.release, here.record.machine, snapshot.bytes, snapshot.made,
        here.misfit);
  call.out().table(table);
}

}  // namespace

void add_vm_snapshot_ls(Command& group) {
  Command& verb = group.verb("ls", "List saved guests and sandboxes, and whether microVMs go on from them here");
  verb.note("With -o json, one object a line.");
  verb.runs(run);
}

}  // namespace dsec::cli
