#include <algorithm>
#include <exception>
#include <memory>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  SandboxFlags sandbox;
  ExecFlags exec;
  std::vector<std::string> command;
  bool remove = false, keep = false;
  std::string status_file;
};

// What ends the attendance of a sandbox that is to go at the end. On this host nobody looks after it any more; one of a
// context whose connection was lost runs on, and can be attended again.
enum class IfItRuns { Remove, Leave };

ExecResult attend_or_remove(engine::Engine& engine, const std::string& id, engine::ExecStream& stream,
                            const AttendOptions& options, bool remove, IfItRuns if_it_runs) {
  try {
    return attend(stream, options);
  } catch (const Error&) {
    const std::exception_ptr failed = std::current_exception();
    try {
      if (remove) engine.remove(id, if_it_runs == IfItRuns::Remove);
    } catch (const Error&) {
      // It runs on, its keeper is gone, or it is being removed already: gc does the rest.
    }
    std::rethrow_exception(failed);
  }
}

// Of a run that has a name: whoever else repeats it may have removed the sandbox, or its keeper has.
std::string end_of_named(engine::Engine& engine, const std::string& id, bool remove) {
  try {
    const std::string reason = engine.wait(id, std::nullopt).reason;
    if (remove) engine.remove(id, false);
    return reason;
  } catch (const Error&) {
    const std::vector<engine::SandboxInfo> left = engine.list({.all = true});
    if (std::any_of(left.begin(), left.end(), [&](const auto& info) { return info.id == id; })) throw;
    return "";
  }
}

void run(const Options& options, Invocation& call) {
  SandboxSpec spec = compose(call, options.sandbox);
  spec.made_for_command = true;
  spec.remove_at_end = !options.keep && (options.remove || !options.exec.detach);
  ExecSpec exec{.argv = engine::main_command(spec.config, options.command), .env = {}, .main = true};
  apply(options.exec, call.out().json(), exec);

  require_root(call.wiring(), "run");
  engine::Engine& engine = call.wiring().engine();
  // From here on a signal is for the command: a sandbox that was made without one would stay.
  const ForwardedSignals signals;
  const std::string& name = exec.operation.op_id;
  const engine::MadeSandbox made =
      name.empty() ? engine::MadeSandbox{engine.create(spec), true} : engine.create_once(spec, name);
  const std::string& id = made.info.id;
  std::unique_ptr<engine::ExecStream> stream = made.now ? start_or_remove(engine, id, exec) : engine.exec(id, exec);
  if (options.exec.detach) {
    stream.reset();
    return tell_id(call.out(), "id", id);
  }
  const ExecResult result = attend_or_remove(engine, id, *stream, {exec.tty, exec.open_stdin, call.out().format()},
                                             spec.remove_at_end && made.now,
                                             call.wiring().context().empty() ? IfItRuns::Remove : IfItRuns::Leave);
  stream.reset();
  std::string reason;
  if (name.empty()) {
    reason = engine.wait(id, std::nullopt).reason;
    if (spec.remove_at_end) engine.remove(id, false);
  } else {
    reason = end_of_named(engine, id, spec.remove_at_end);
  }
  finish(call, result, exec.argv, reason, options.status_file);
}

}  // namespace

void add_run(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("run", "Run a command in a new sandbox");
  verb.reaches(Command::Reach::Context);
  declare(verb, options->sandbox);
  declare(verb, options->exec);
  verb.flag("--rm", options->remove, "Remove the sandbox at its end (default unless --detach)");
  verb.flag("--keep", options->keep, "Keep the sandbox at its end, until dsec rm");
  verb.passes_status_on(options->status_file);
  verb.takes_command(options->command);
  verb.note("Without a COMMAND the layers' own is run. The sandbox ends with it.");
  verb.example("dsec run toolz-1 -- pytest -q");
  verb.example("dsec run base/debian:12 workspace/toolz toolkit/harness -- bash");
  verb.example("dsec run -d --name web -e PORT=80 --memory 512m base/debian:12 -- sleep 1h");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
