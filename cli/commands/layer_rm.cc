#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "registry/store/local_store.h"

namespace dsec::cli {
namespace {

void run(const std::vector<std::string>& refs, Invocation& call) {
  for (const auto& ref : refs) {
    const registry::Removal removal = call.wiring().store().remove(LayerRef::parse(ref));
    if (call.out().json()) {
      call.out().json_line(
          {{"tags", removal.tags}, {"untagged", removal.untagged ? Json(removal.untagged->str()) : Json(nullptr)}});
      continue;
    }
    for (const auto& tag : removal.tags) call.out().line("untagged " + tag);
    if (removal.untagged) call.out().line("left to dsec gc: " + removal.untagged->str());
  }
}

}  // namespace

void add_layer_rm(Command& layer) {
  auto refs = std::make_shared<std::vector<std::string>>();
  Command& verb = layer.verb("rm", "Remove tags; dsec gc then takes layers that nothing names");
  verb.positionals("REF", *refs, "A tag, or a digest for all tags of its layer");
  verb.runs([refs](Invocation& call) { run(*refs, call); });
}

}  // namespace dsec::cli
