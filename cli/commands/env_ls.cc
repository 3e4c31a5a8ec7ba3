#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/project_flags.h"
#include "layers/build/environments.h"

namespace dsec::cli {
namespace {

void run(const ProjectFlags& flags, Invocation& call) {
  const layers::Project project = load(flags);
  const std::optional<Lock> lock = layers::read_lock(project);
  Table table({"NAME", "BASE", "WORKSPACE", "TOOLKITS", "LOCKED"});
  for (const EnvironmentSpec& environment : project.environments) {
    const auto name_of = [&](const LayerRef& ref) { return layers::actual_ref(project, ref).str(); };
    const bool locked = lock && lock->environments.contains(environment.name);
    std::string toolkits;
    Json names = Json::array();
    for (const auto& ref : environment.toolkits) {
      toolkits += (toolkits.empty() ? "" : " ") + name_of(ref);
      names.push_back(name_of(ref));
    }
    const std::string workspace = environment.workspace ? name_of(*environment.workspace) : "";
    if (call.out().json())
      call.out().json_line({{"name", environment.name},
                            {"base", name_of(environment.base)},
                            {"workspace", environment.workspace ? Json(workspace) : Json(nullptr)},
                            {"toolkits", names},
                            {"locked", locked}});
    else
      table.row({environment.name, name_of(environment.base), workspace, toolkits, locked ? "yes" : "no"});
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_env_ls(Command& env) {
  auto flags = std::make_shared<ProjectFlags>();
  Command& verb = env.verb("ls", "List the environments of dsec.yaml");
  declare(verb, *flags);
  verb.note("With -o json, one object a line.");
  verb.runs([flags](Invocation& call) { run(*flags, call); });
}

}  // namespace dsec::cli
