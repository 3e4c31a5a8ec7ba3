#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/sandbox_flags.h"
#include "cli/selection.h"
#include "core/engine/engine.h"

namespace dsec::cli {
namespace {

struct Options {
  Selection selection;
  std::optional<std::chrono::milliseconds> grace;
  std::string op_id;
};

}  // namespace

void add_stop(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("stop", "Stop sandboxes: their stop signal, then SIGKILL");
  verb.reaches(Command::Reach::Context);
  declare(verb, options->selection);
  verb.duration("-t,--time", options->grace, "How long to wait before SIGKILL (default: 10s)");
  declare_op_id(verb, options->op_id);
  verb.note("A sandbox that has ended already is no error. Its files stay until dsec rm.");
  verb.runs([options](Invocation& call) {
    const auto grace = options->grace.value_or(std::chrono::seconds(10));
    const OperationContext context = operation_context(options->op_id);
    for_each_selected(call, options->selection,
                      [&](engine::Engine& engine, const std::string& name) { engine.stop(name, grace, context); });
  });
}

}  // namespace dsec::cli
