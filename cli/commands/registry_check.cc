#include "registry/check.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/lock_files.h"
#include "cli/report.h"
#include "core/base/units.h"
#include "registry/registries.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string registry;
  bool quick = false, repair = false;
  std::vector<std::string> locks;
};

void run(const Options& options, Invocation& call) {
  const registry::CheckResult result = registry::check_registry(
      registry::find_registry(Config::load(), options.registry),
      {.content = !options.quick, .repair = options.repair, .pinned = locked_layers(options.locks)}, call.progress());
  call.end_progress();
  if (!result.left_out.empty()) call.progress().warn("not looked at: " + result.left_out);
  bool wrong = false;
  Json problems = Json::array();
  for (const auto& problem : result.problems) {
    wrong = wrong || !problem.repaired;
    const std::string kind(registry::to_string(problem.kind));
    problems.push_back(
        {{"kind", kind}, {"path", problem.path}, {"what", problem.what}, {"repaired", problem.repaired}});
    if (!call.out().json())
      call.out().line(kind + ": " + printable(problem.path) + " " + printable(problem.what) +
                      (problem.repaired ? " (repaired)" : ""));
  }
  if (call.out().json())
    call.out().json({{"tags", result.tags},
                     {"layers", result.layers},
                     {"blobs", result.blobs},
                     {"bytes", result.bytes},
                     {"left_out", result.left_out},
                     {"problems", problems}});
  else
    call.out().line(std::to_string(result.tags) + " tags, " + std::to_string(result.layers) + " layers, " +
                    std::to_string(result.blobs) + " blobs, " + format_size(result.bytes) + ": " +
                    (result.problems.empty() ? "all right" : std::to_string(result.problems.size()) + " problems"));
  if (wrong) call.exit_with(kDifference);
}

}  // namespace

void add_registry_check(Command& registry) {
  auto options = std::make_shared<Options>();
  Command& verb = registry.verb("check", "Find missing, truncated, altered and unreferenced files of a registry");
  verb.positional("NAME|URL", options->registry, "The registry");
  verb.flag("--quick", options->quick, "Look at names, sizes and references only, not at contents");
  verb.flag("--repair", options->repair, "Remove what is damaged or leads nowhere; publishing again brings it back");
  declare_locks(verb, options->locks, "Also find layers that a dsec.lock names and the registry does not have");
  verb.note("Exit code 3 when something is wrong.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
