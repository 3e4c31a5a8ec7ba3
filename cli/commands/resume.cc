#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/selection.h"
#include "core/engine/engine.h"

namespace dsec::cli {

void add_resume(Command& root) {
  auto selection = std::make_shared<Selection>();
  Command& verb = root.verb("resume", "Let paused sandboxes go on");
  declare(verb, *selection);
  verb.note("One that is not paused is no error.");
  verb.runs([selection](Invocation& call) {
    for_each_selected(call, *selection, [](engine::Engine& engine, const std::string& name) {
      engine.resume(name, {.op_id = "", .origin = Origin::Cli});
    });
  });
}

}  // namespace dsec::cli
