#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/project_flags.h"
#include "cli/wiring.h"
#include "layers/build/environments.h"

namespace dsec::cli {

void add_env_lock(Command& env) {
  auto flags = std::make_shared<ProjectFlags>();
  Command& verb = env.verb("lock", "Pin the layers of dsec.yaml, as the store has them now, in dsec.lock");
  declare(verb, *flags);
  verb.runs([flags](Invocation& call) {
    const layers::Project project = load(*flags);
    engine::LayerStore& store = call.wiring().layer_store();
    layers::write_lock(project, layers::make_lock(project, store), store);
    const std::string path = layers::lock_path(project);
    if (call.out().json()) return call.out().json({{"lock", path}});
    call.out().line("wrote " + path);
  });
}

}  // namespace dsec::cli
