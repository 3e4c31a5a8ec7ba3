#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/project_flags.h"
#include "cli/report.h"
#include "cli/wiring.h"
#include "layers/build/environments.h"

namespace dsec::cli {
namespace {

struct Options {
  ProjectFlags project;
  std::string name;
};

void run(const Options& options, Invocation& call) {
  const layers::Project project = load(options.project);
  const std::vector<layers::EnvironmentFinding> findings = layers::check_environments(
      project, layers::read_lock(project), options.name, call.wiring().layer_store(), call.wiring().mounter());
  for (const auto& finding : findings) {
    const std::string kind(layers::to_string(finding.kind));
    if (call.out().json())
      call.out().json_line({{"kind", kind}, {"subject", finding.subject}, {"text", finding.text}});
    else
      call.out().line(kind + ": " + printable(finding.subject) + ": " + printable(finding.text));
  }
  const bool wrong = std::any_of(findings.begin(), findings.end(), [](const auto& finding) {
    return finding.kind != layers::EnvironmentFinding::Kind::Hides;
  });
  if (wrong) call.exit_with(kDifference);
}

}  // namespace

void add_env_check(Command& env) {
  auto options = std::make_shared<Options>();
  Command& verb = env.verb("check", "Compare environments with dsec.lock, the store and each other's layers");
  verb.optional_positional("NAME", options->name, "One environment (default: all)");
  declare(verb, options->project);
  verb.note(
      "Reports missing and changed layers, moved tags, layers built on another base than they are stacked on, and "
      "files that cannot be stacked; exit code 3 when there is any. Also tells which files a later layer hides. With "
      "-o json, one object a line.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
