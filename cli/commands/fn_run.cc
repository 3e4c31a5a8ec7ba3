#include <fcntl.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/function_flags.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/files.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

constexpr std::uint64_t kLargestInput = 256u << 20;

struct Options {
  FunctionFlags function;
  std::string input, status_file;
  std::vector<std::string> files, args;
};

std::string read_input(const std::string& path) {
  if (path.empty()) return "";
  return path == "-" ? read_all(STDIN_FILENO, kLargestInput) : read_file(path, kLargestInput);
}

// Exit code and output are the program's; this is what they cannot tell.
void tell_verdict(const FunctionResult& result, const FunctionType& type) {
  const FunctionLimits& limits = result.stage == "compile" ? type.spec.compile_limits : type.spec.run_limits;
  std::string text = std::string(to_string(result.verdict)) + " in " + result.stage;
  if (result.verdict == Verdict::OutputLimit) text += ": more than " + format_size(limits.output) + " were written";
  if (!result.detail.empty()) text += ": " + result.detail;
  std::cerr << text << '\n';
}

void run(const Options& options, Invocation& call) {
  require_root("fn run");
  const FunctionType type = find_function(call, options.function, options.function.type);
  FunctionCall request{.input = read_input(options.input), .files = {}, .args = options.args};
  for (const std::string& file : options.files) request.files.push_back(read_function_file(file));
  engine::Functions functions(call.wiring().local_engine(), call.wiring().home(), refill_by_process(options.function));
  const FunctionResult result = functions.call(type, request);
  if (call.out().json()) {
    call.out().json(to_json(result));
  } else {
    call.out().raw(result.output);
    std::cerr << result.errors;
    if (result.verdict != Verdict::Ok && result.verdict != Verdict::RuntimeError) tell_verdict(result, type);
  }
  finish(call, result.result, type.spec.command, "", options.status_file);
}

}  // namespace

void add_fn_run(Command& fn) {
  auto options = std::make_shared<Options>();
  Command& verb = fn.verb("run", "Make one call");
  verb.reaches(Command::Reach::Local);
  verb.positional("TYPE", options->function.type, "Function of dsec.yaml");
  declare(verb, options->function);
  verb.option("--stdin", "FILE", options->input, "Standard input of the call; '-': ours (default: none)");
  verb.options("--file", "[NAME=]PATH", options->files, "Put a file into the call's workdir");
  verb.passes_status_on(options->status_file);
  verb.takes_command(options->args);
  verb.note("What follows -- is appended to the function's command. With -o json, the result as one object.");
  verb.example("dsec fn run python --file main.py=solution.py --stdin input.txt");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
