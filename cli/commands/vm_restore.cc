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
  std::string snapshot, name;
  std::optional<std::uint64_t> count;
  std::vector<std::string> labels;
};

void run(const Options& options, Invocation& call) {
  require_root("vm restore");
  engine::ForkRequest request;
  request.count = options.count.value_or(1);
  request.name = options.name;
  request.labels = parse_labels(options.labels);
  for (const engine::SandboxInfo& info : memory_branching(call).restore(options.snapshot, request)) {
    if (call.out().json())
      call.out().json_line(to_json(info));
    else
      call.out().line(info.id);
  }
}

}  // namespace

void add_vm_restore(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("restore", "Start sandboxes that go on where one was saved");
  verb.reaches(Command::Reach::Local);
  verb.positional("NAME", options->snapshot, "What dsec vm save has saved");
  verb.number("-n,--count", options->count, "How many (default: 1)");
  verb.option("--name", "NAME", options->name,
              "They are called NAME-1, NAME-2 … (default: the name of the sandbox that was saved, if any)");
  verb.options("-l,--label", "KEY=VALUE", options->labels, "Label of the sandboxes, over those of that one");
  verb.note(
      "All share the memory that was saved, each page until they write to it. Each has an id, a host name and a "
      "machine id of its own, the time of now, and random numbers of its own; ids are printed one a line.");
  verb.example("for id in $(dsec vm restore loaded --count 8); do dsec exec -d $id -- ./attempt; done");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
