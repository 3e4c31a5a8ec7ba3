#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/signal_name.h"

namespace dsec::cli {

void add_kill(Command& root) {
  struct Options {
    std::string sandbox, signal = "KILL", op_id;
    std::vector<std::string> commands;
  };
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("kill", "Send a signal to commands of a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.positionals("EXEC_ID", options->commands, "What dsec commands shows");
  verb.option("-s,--signal", "SIGNAL", options->signal, "Name or number (default: KILL)");
  declare_op_id(verb, options->op_id);
  verb.note("dsec stop ends the sandbox itself.");
  verb.runs([options](Invocation& call) {
    if (!options->op_id.empty() && options->commands.size() > 1)
      throw usage_error("an op-id names one operation, and several commands are given");
    const int signo = signal_number(options->signal.empty() ? "KILL" : options->signal);
    for (const auto& each : options->commands)
      call.wiring().engine().signal(options->sandbox, each, signo, operation_context(options->op_id));
  });
}

}  // namespace dsec::cli
