#include <memory>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox;
  std::vector<std::string> command;
  ExecFlags flags;
  std::vector<std::string> env, env_files;
  std::string workdir, user, status_file;
};

void run(const Options& options, Invocation& call) {
  ExecSpec spec{.argv = options.command, .env = {}, .workdir = options.workdir, .user = options.user};
  if (spec.argv.empty()) throw usage_error("no command is given").hint("dsec exec " + options.sandbox + " -- COMMAND");
  apply(options.flags, call.out().json(), spec);
  for (const auto& path : options.env_files) add_variables_of_file(spec.env, path);
  for (const auto& text : options.env) add_variable(spec.env, text);

  const ForwardedSignals signals;
  const std::unique_ptr<engine::ExecStream> stream = call.wiring().engine().exec(options.sandbox, spec);
  if (options.flags.detach) return tell_id(call.out(), "exec_id", stream->exec_id());
  const ExecResult result = attend(*stream, {spec.tty, spec.open_stdin, call.out().format()});
  finish(call, result, spec.argv, "", options.status_file);
}

}  // namespace

void add_exec(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("exec", "Run a command in a running sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  declare(verb, options->flags);
  verb.options("-e,--env", "NAME[=VALUE]", options->env, "Set a variable; without a value, take it from here");
  verb.options("--env-file", "FILE", options->env_files, "Set the variables of a file, one a line");
  verb.option("-w,--workdir", "PATH", options->workdir, "Directory to start in (default: the sandbox's)");
  verb.option("-u,--user", "USER[:GROUP]", options->user, "User to run as (default: the sandbox's)");
  verb.passes_status_on(options->status_file);
  verb.takes_command_without_dashes(options->command);
  verb.note("Options come before SANDBOX when there is no --.");
  verb.example("dsec exec web -- ls -l /workspace");
  verb.example("dsec exec -it web bash");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
