#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/sandbox_flags.h"
#include "cli/selection.h"
#include "core/engine/engine.h"

namespace dsec::cli {

void add_resume(Command& root) {
  auto selection = std::make_shared<Selection>();
  auto op_id = std::make_shared<std::string>();
  Command& verb = root.verb("resume", "Let paused sandboxes go on");
  verb.reaches(Command::Reach::Context);
  declare(verb, *selection);
  declare_op_id(verb, *op_id);
  verb.note("One that is not paused is no error.");
  verb.runs([selection, op_id](Invocation& call) {
    const OperationContext context = operation_context(*op_id);
    for_each_selected(call, *selection,
                      [&](engine::Engine& engine, const std::string& name) { engine.resume(name, context); });
  });
}

}  // namespace dsec::cli
