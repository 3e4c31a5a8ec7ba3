#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/memory_branching.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/vm_snapshot_json.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, name, op_id;
};

void run(const Options& options, Invocation& call) {
  require_root("vm save");
  const engine::MemorySnapshot made =
      memory_branching(call).save(options.sandbox, options.name, operation_context(options.op_id));
  if (!call.out().json()) return call.out().line(made.name);
  call.out().json(snapshot_json(made, runners::saved_sandbox_here(call.wiring().home(), made.place)));
}

}  // namespace

void add_vm_save(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("save", "Save a microVM with all that runs in it, for others to go on from");
  verb.reaches(Command::Reach::Local);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.positional("NAME", options->name, "What it is called here");
  declare_op_id(verb, options->op_id);
  verb.note(
      "Memory, devices and disk are of one moment. The sandbox stands still meanwhile, and goes on. What is saved "
      "means something to this host and to machines like it alone; dsec snapshot makes a layer, of files.");
  verb.example("dsec vm save dev loaded && dsec vm restore loaded --count 4");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
