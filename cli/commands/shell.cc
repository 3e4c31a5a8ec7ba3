#include <memory>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, workdir, user, status_file;
};

void run(const Options& options, Invocation& call) {
  // Not a login shell: /etc/profile of many images would replace the environment of the layers.
  ExecSpec spec{.argv = {"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"},
                .env = {},
                .workdir = options.workdir,
                .user = options.user};
  apply({.interactive = true, .tty = std::nullopt, .detach = false, .timeout = std::nullopt, .op_id = {}},
        call.out().json(), spec);
  const ForwardedSignals signals;
  const std::unique_ptr<engine::ExecStream> stream = call.wiring().engine().exec(options.sandbox, spec);
  const ExecResult result = attend(*stream, {spec.tty, spec.open_stdin, call.out().format()});
  finish(call, result, {"/bin/sh"}, "", options.status_file);
}

}  // namespace

void add_shell(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("shell", "Open a shell in a running sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.option("-w,--workdir", "PATH", options->workdir, "Directory to start in (default: the sandbox's)");
  verb.option("-u,--user", "USER[:GROUP]", options->user, "User to run as (default: the sandbox's)");
  verb.passes_status_on(options->status_file);
  verb.note("bash where the sandbox has it, else sh. Without a terminal it reads commands from standard input.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
