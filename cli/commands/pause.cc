#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/sandbox_flags.h"
#include "cli/selection.h"
#include "core/engine/engine.h"

namespace dsec::cli {

void add_pause(Command& root) {
  auto selection = std::make_shared<Selection>();
  auto op_id = std::make_shared<std::string>();
  Command& verb = root.verb("pause", "Freeze sandboxes and give their memory back to the host");
  verb.reaches(Command::Reach::Context);
  declare(verb, *selection);
  declare_op_id(verb, *op_id);
  verb.note(
      "The next operation (exec, cp, attach, diff, stop …) resumes by itself; looking (ps, inspect, stats, logs, wait, "
      "snapshot, fork), update and net set do not. Memory is given back where a control group of the "
      "sandbox counts it: with cgroup v1 that takes --memory. "
      "Lifetimes go on. dsec create --idle-pause does it by itself.");
  verb.runs([selection, op_id](Invocation& call) {
    const OperationContext context = operation_context(*op_id);
    for_each_selected(call, *selection,
                      [&](engine::Engine& engine, const std::string& name) { engine.pause(name, context); });
  });
}

}  // namespace dsec::cli
