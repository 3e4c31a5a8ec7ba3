#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/layer_json.h"
#include "cli/project_flags.h"
#include "cli/wiring.h"
#include "core/engine/compose_spec.h"
#include "layers/build/environments.h"

namespace dsec::cli {
namespace {

struct Options {
  ProjectFlags project;
  std::string name;
};

void run(const Options& options, Invocation& call) {
  const layers::Project project = load(options.project);
  const layers::ResolvedEnvironment found =
      layers::resolve_environment(project, layers::read_lock(project), options.name, call.wiring().layer_store());
  Json json = {{"name", found.spec.name}, {"layers", Json::array()}, {"drift", layers::built_on_drift(found.layers)}};
  for (const auto& layer : found.layers) json["layers"].push_back(to_json(layer, call.wiring().is_on_demand(layer)));
  json["spec"] = dsec::to_json(engine::compose_spec(found.layers, engine::request_of(found.spec, {})));
  call.out().json(json);
}

}  // namespace

void add_env_inspect(Command& env) {
  auto options = std::make_shared<Options>();
  Command& verb = env.verb("inspect", "Show an environment's layers and what a sandbox of it would be, as JSON");
  verb.positional("NAME", options->name, "The environment");
  declare(verb, options->project);
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
