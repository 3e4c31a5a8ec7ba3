#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> names, labels;
  std::string cpu_class, op_id;
  engine::UpdateRequest request;
};

// "KEY=VALUE", or "KEY-" to take it away.
std::map<std::string, std::optional<std::string>> label_changes(const std::vector<std::string>& texts) {
  std::map<std::string, std::optional<std::string>> changes;
  for (const std::string& text : texts) {
    if (text.size() > 1 && text.back() == '-' && text.find('=') == std::string::npos)
      changes[text.substr(0, text.size() - 1)] = std::nullopt;
    else
      for (const auto& [key, value] : parse_labels({text})) changes[key] = value;
  }
  return changes;
}

void run(const Options& options, Invocation& call) {
  engine::UpdateRequest request = options.request;
  if (!options.cpu_class.empty()) request.cpu_class = cpu_class_from(options.cpu_class);
  request.labels = label_changes(options.labels);
  request.operation = operation_context(options.op_id);
  require_root(call.wiring(), "update");
  engine::Engine& engine = call.wiring().engine();
  std::optional<Error> first;
  for (const std::string& name : options.names) {
    try {
      const engine::SandboxInfo info = engine.update(name, request);
      if (call.out().json())
        call.out().json_line(to_json(info));
      else
        call.out().line(name);
    } catch (const Error& error) {
      // The first is reported by main.
      if (first) report(error, call.out().format(), std::cerr);
      if (!first) first = error;
    }
  }
  if (first) throw *first;
}

}  // namespace

void add_update(Command& root) {
  auto options = std::make_shared<Options>();
  engine::UpdateRequest& request = options->request;
  Command& verb = root.verb("update", "Change limits, times and labels of sandboxes");
  verb.reaches(Command::Reach::Context);
  verb.positionals("SANDBOX", options->names, "Id, unique beginning of an id, or name");
  verb.decimal("--cpus", request.cpus, "CPU time, in cores; 0: no limit");
  verb.size("-m,--memory", request.memory, "Memory limit; 0: none");
  verb.number("--pids,--pids-limit", request.pids, "Limit of processes and threads; 0: none");
  verb.size("--disk", request.disk, "Limit of the writable layer, where it is a quota");
  verb.size("--output-limit", request.output, "Bytes kept of each stream of commands that begin later");
  verb.choice("--class", options->cpu_class, {"latency", "batch", "default"},
              "When processors are short: come before others, or take what they leave");
  verb.duration("--lifetime", request.lifetime, "End so long after creation; 0: never");
  verb.duration("--idle", request.idle, "End when no command ran for so long; 0: never");
  verb.duration("--idle-pause", request.idle_pause, "Pause when no command ran for so long; 0: never");
  verb.options("-l,--label", "KEY[=VALUE]", options->labels, "Set a label; KEY- takes it away");
  declare_op_id(verb, options->op_id);
  verb.note(
      "All is checked before anything is changed. A memory limit below what is in use is refused when that cannot be "
      "given back. A paused sandbox stays paused; of one that has ended only labels can be changed.");
  verb.example("dsec update web --memory 2g --cpus 1.5");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
