#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/sandbox_flags.h"
#include "cli/terminal.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {

constexpr char kSandbox[] = "Id, unique beginning of an id, or name";
constexpr std::uint64_t kLongestText = 3ull << 20;

struct OpenOptions {
  std::string sandbox, workdir, user;
  std::optional<std::string> shell;
  std::string name;
  bool tty = false;
  std::vector<std::string> env, env_files;
  std::string op_id;
};

void open(const OpenOptions& options, Invocation& call) {
  SessionSpec spec{.name = options.name,
                   .shell = options.shell.value_or(""),
                   .env = {},
                   .workdir = options.workdir,
                   .user = options.user,
                   .tty = options.tty,
                   .operation = operation_context(options.op_id)};
  for (const auto& path : options.env_files) add_variables_of_file(spec.env, path);
  for (const auto& text : options.env) add_variable(spec.env, text);
  if (spec.tty) std::tie(spec.rows, spec.columns) = terminal_size();
  const engine::SessionInfo info = call.wiring().engine().open_session(options.sandbox, spec);
  if (call.out().json()) return call.out().json(to_json(info));
  call.out().line(info.id);
}

struct RunOptions {
  std::string sandbox, session, status_file, op_id;
  std::vector<std::string> words;
  bool interactive = false, detach = false;
  std::optional<std::chrono::milliseconds> timeout;
};

std::string quoted_for_shell(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// One word is a text of the shell's language; several are the words of one command, as exec takes them.
std::string text_of(const RunOptions& options) {
  if (options.words.size() == 1) return options.words.front();
  std::string text;
  for (const auto& word : options.words) text += (text.empty() ? "" : " ") + quoted_for_shell(word);
  if (!options.words.empty()) return text;
  if (options.interactive)
    throw usage_error("with --interactive standard input is the command's, and there is no text")
        .hint("dsec session run -i SANDBOX SESSION -- 'COMMAND TEXT'");
  return read_all(STDIN_FILENO, kLongestText);
}

bool has_terminal(engine::Engine& engine, const RunOptions& options) {
  try {
    for (const engine::SessionInfo& info : engine.sessions(options.sandbox))
      if (info.id == options.session || info.name == options.session) return info.tty;
  } catch (const Error&) {
    // What is recorded under an op-id outlives its sandbox; without one the command itself tells what is wrong.
  }
  return false;
}

void run(const RunOptions& options, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  SessionCommand command{.text = text_of(options),
                         .detach = options.detach,
                         .timeout = options.timeout,
                         .operation = operation_context(options.op_id)};
  const bool tty = !options.detach && has_terminal(engine, options);
  command.open_stdin = options.interactive || (tty && on_terminal());
  if (tty) std::tie(command.rows, command.columns) = terminal_size();
  const ForwardedSignals signals;
  const std::unique_ptr<engine::ExecStream> stream = engine.run_in_session(options.sandbox, options.session, command);
  if (options.detach) return tell_id(call.out(), "exec_id", stream->exec_id());
  const ExecResult result = attend(*stream, {tty, command.open_stdin, call.out().format()});
  finish(call, result, {command.text.substr(0, 60)}, "", options.status_file);
  if (result.session_ended && !call.out().json())
    report(failure("session " + options.session + " has ended with this command"), Format::Text, std::cerr);
}

void list(const std::string& sandbox, Invocation& call) {
  const std::vector<engine::SessionInfo> found = call.wiring().engine().sessions(sandbox);
  if (call.out().json()) {
    for (const auto& info : found) call.out().json_line(to_json(info));
    return;
  }
  Table table({"ID", "NAME", "OPENED", "COMMANDS", "RUNNING", "TTY", "SHELL"});
  for (const auto& info : found)
    table.row({info.id, info.name, age(info.opened), std::to_string(info.commands),
               info.running.empty() ? "-" : info.running, info.tty ? "yes" : "no", printable(info.shell.front())});
  call.out().table(table);
}

}  // namespace

void add_session_open(Command& session) {
  auto options = std::make_shared<OpenOptions>();
  Command& verb = session.verb("open", "Open a shell that keeps its state between commands");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, kSandbox);
  verb.option("--name", "NAME", options->name, "Name of the session, beside its id");
  verb.option("--shell", "SHELL", options->shell, "bash, sh or a path (default: bash where there is one, else sh)");
  verb.flag("-t,--tty", options->tty, "Give its commands a terminal");
  verb.options("-e,--env", "NAME[=VALUE]", options->env, "Set a variable; without a value, take it from here");
  verb.options("--env-file", "FILE", options->env_files, "Set the variables of a file, one a line");
  verb.option("-w,--workdir", "PATH", options->workdir, "Directory to start in (default: the sandbox's)");
  verb.option("-u,--user", "USER[:GROUP]", options->user, "User to run as (default: the sandbox's)");
  declare_op_id(verb, options->op_id);
  verb.example("dsec session open web --name build");
  verb.runs([options](Invocation& call) { open(*options, call); });
}

void add_session_run(Command& session) {
  auto options = std::make_shared<RunOptions>();
  Command& verb = session.verb("run", "Run a command in a session");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, kSandbox);
  verb.positional("SESSION", options->session, "Id or name of the session");
  verb.flag("-i,--interactive", options->interactive, "Give it our standard input");
  verb.flag("-d,--detach", options->detach, "Do not wait for its end");
  verb.duration("--timeout", options->timeout, "End it and all it has started after so long, with exit code 124");
  declare_op_id(verb, options->op_id);
  verb.passes_status_on(options->status_file);
  verb.takes_command(options->words);
  verb.note(
      "One word after -- is a text of the shell's language, several are a command and its arguments. Without --"
      " the text comes from standard input.");
  verb.example("dsec session run web build -- 'cd /src && make'");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

void add_session_ls(Command& session) {
  auto sandbox = std::make_shared<std::string>();
  Command& verb = session.verb("ls", "List the sessions of a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", *sandbox, kSandbox);
  verb.note("With -o json, one object a line.");
  verb.runs([sandbox](Invocation& call) { list(*sandbox, call); });
}

void add_session_close(Command& session) {
  struct Options {
    std::string sandbox;
    std::vector<std::string> sessions;
    std::string op_id;
  };
  auto options = std::make_shared<Options>();
  Command& verb = session.verb("close", "End sessions with all that was started in them");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, kSandbox);
  verb.positionals("SESSION", options->sessions, "Id or name of the session");
  declare_op_id(verb, options->op_id);
  verb.runs([options](Invocation& call) {
    if (!options->op_id.empty() && options->sessions.size() > 1)
      throw usage_error("an op-id names one operation, and several sessions are given");
    for (const auto& each : options->sessions)
      call.wiring().engine().close_session(options->sandbox, each, operation_context(options->op_id));
  });
}

}  // namespace dsec::cli
