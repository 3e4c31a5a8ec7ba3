#include <memory>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, exec_id, status_file;
  bool interactive = false;
  std::optional<std::uint64_t> stdout_from, stderr_from;
};

// The main command is the first that a sandbox was given.
engine::ExecInfo choose(engine::Engine& engine, const Options& options) {
  const std::vector<engine::ExecInfo> commands = engine.commands(options.sandbox);
  if (commands.empty()) throw usage_error("sandbox " + quote(options.sandbox) + " has run no command yet");
  if (options.exec_id.empty()) return commands.front();
  std::vector<std::string> known;
  for (const auto& command : commands) {
    if (command.exec_id == options.exec_id) return command;
    known.push_back(command.exec_id);
  }
  Error error = usage_error("sandbox " + quote(options.sandbox) + " has no command " + quote(options.exec_id));
  for (const auto& near : nearest_names(options.exec_id, known)) error.hint(near);
  throw error;
}

void run(const Options& options, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  const engine::ExecInfo command = choose(engine, options);
  const ForwardedSignals signals;
  const std::unique_ptr<engine::ExecStream> stream = engine.attach(
      options.sandbox, command.exec_id, {options.stdout_from.value_or(0), options.stderr_from.value_or(0)});
  const ExecResult result = attend(*stream, {false, options.interactive, call.out().format()});
  finish(call, result, command.argv, "", options.status_file);
}

}  // namespace

void add_attach(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("attach", "Follow a command of a sandbox, from the beginning of its output");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.optional_positional("EXEC_ID", options->exec_id, "What dsec commands shows (default: the main command)");
  verb.flag("-i,--interactive", options->interactive, "Give it our standard input");
  verb.size("--stdout-from", options->stdout_from, "Pass over so many bytes of its standard output");
  verb.size("--stderr-from", options->stderr_from, "Pass over so many bytes of its standard error");
  verb.passes_status_on(options->status_file);
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
