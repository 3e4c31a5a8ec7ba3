#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/vm_snapshot_json.h"
#include "cli/wiring.h"
#include "runners/vm/warm_up.h"

namespace dsec::cli {
namespace {

struct Options {
  std::optional<std::uint64_t> memory;
  std::optional<double> cpus;
  bool pmem = false;
};

void run(const Options& options, Invocation& call) {
  require_root("vm warm");
  Limits limits;
  limits.memory = options.memory;
  limits.cpus = options.cpus;
  const runners::WarmGuest guest =
      runners::warm_up(call.wiring().home(), call.wiring().runners().at("microvm").get(), limits, options.pmem);
  if (call.out().json()) return call.out().json(snapshot_json({guest, ""}));
  call.out().line(guest.name);
}

}  // namespace

void add_vm_warm(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("warm", "Save the memory of a guest that has begun, for microVMs to go on from");
  verb.size("-m,--memory", options->memory, "Memory of the guest (default: 512MiB)");
  verb.decimal("--cpus", options->cpus, "Its processors, rounded up (default: 2)");
  verb.flag("--pmem", options->pmem, "For microVMs whose layers are memory of their guests");
  verb.note(
      "From then on each microVM with as much memory and as many processors goes on from there, which takes a fraction "
      "of what its kernel takes to begin. Others begin as ever, as do all once the kernel, QEMU, the processor or dsec "
      "are others: then save one again. Those that fit no more are removed.");
  verb.example("dsec vm warm -m 1GiB --cpus 4 && dsec run --backend microvm -m 1GiB --cpus 4 toolz-1 -- pytest -q");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
