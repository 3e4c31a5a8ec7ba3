#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/wiring.h"

namespace dsec::cli {

void add_inspect(Command& root) {
  auto names = std::make_shared<std::vector<std::string>>();
  Command& verb = root.verb("inspect", "Show all that is known of sandboxes, as a JSON array");
  verb.reaches(Command::Reach::Context);
  verb.positionals("SANDBOX", *names, "Id, unique beginning of an id, or name");
  verb.runs([names](Invocation& call) {
    engine::Engine& engine = call.wiring().engine();
    Json all = Json::array();
    for (const auto& name : *names) {
      const engine::SandboxInfo info = engine.inspect(name);
      Json json = to_json(info);
      json["on_demand"] = call.wiring().on_demand_use(info.spec.layers);
      json["commands"] = Json::array();
      for (const auto& command : engine.commands(info.id)) json["commands"].push_back(to_json(command));
      all.push_back(std::move(json));
    }
    call.out().json(all);
  });
}

}  // namespace dsec::cli
