#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/memory_branching.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, name, op_id;
  std::optional<std::uint64_t> count;
  std::vector<std::string> labels;
  bool memory = false;
};

void run(const Options& options, Invocation& call) {
  require_root(call.wiring(), "fork");
  const engine::ForkRequest request{options.count.value_or(1), options.name, parse_labels(options.labels),
                                    operation_context(options.op_id)};
  const std::vector<engine::SandboxInfo> made = options.memory
                                                    ? memory_branching(call).fork_memory(options.sandbox, request)
                                                    : call.wiring().engine().fork(options.sandbox, request);
  for (const engine::SandboxInfo& info : made) {
    if (call.out().json())
      call.out().json_line(to_json(info));
    else
      call.out().line(info.id);
  }
}

}  // namespace

void add_fork(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("fork", "Start sandboxes with the files and settings of another, which goes on");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.number("-n,--count", options->count, "How many (default: 1)");
  verb.flag("--memory", options->memory, "With all that runs in it, as dsec vm save and restore do (microVMs)");
  verb.option("--name", "NAME", options->name,
              "They are called NAME-1, NAME-2 … (default: the sandbox's name, if any)");
  verb.options("-l,--label", "KEY=VALUE", options->labels, "Label of the forks, over those of the sandbox");
  declare_op_id(verb, options->op_id);
  verb.note(
      "All share one copy of what the sandbox has changed, and every page of it. Without --memory no processes are "
      "copied. Each fork has a host name and machine id of its own and the label dsec.forked-from; ids are printed one "
      "a line.");
  verb.example("for id in $(dsec fork dev --count 8); do dsec exec -d $id -- ./attempt; done");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
