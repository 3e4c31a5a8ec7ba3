#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/layer_json.h"
#include "cli/wiring.h"
#include "registry/store/local_store.h"

namespace dsec::cli {

void add_layer_inspect(Command& layer) {
  auto refs = std::make_shared<std::vector<std::string>>();
  Command& verb = layer.verb("inspect", "Show all that is known of layers, as a JSON array");
  verb.positionals("REF", *refs, "kind/name, kind/name:tag, kind/name@sha256:…, or a beginning of a digest");
  verb.runs([refs](Invocation& call) {
    Json all = Json::array();
    for (const auto& ref : *refs) {
      const engine::StoredLayer found = call.wiring().store().get(LayerRef::parse(ref));
      all.push_back(to_json(found, call.wiring().is_on_demand(found)));
    }
    call.out().json(all);
  });
}

}  // namespace dsec::cli
