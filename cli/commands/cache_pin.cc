#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "registry/store/working_set.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> refs;
  bool remove = false;
};

void run(const Options& options, Invocation& call) {
  registry::LocalStore& store = call.wiring().store();
  std::vector<engine::StoredLayer> layers;
  for (const auto& ref : options.refs) layers.push_back(store.get(LayerRef::parse(ref)));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (options.remove)
      registry::unpin(store, layers[i].digest);
    else
      registry::pin(store, layers[i].digest);
    if (call.out().json())
      call.out().json_line({{"ref", options.refs[i]}, {"digest", layers[i].digest.str()}, {"pinned", !options.remove}});
    else
      call.out().line((options.remove ? "unpinned " : "pinned ") + options.refs[i] + " " + layers[i].digest.brief());
  }
}

}  // namespace

void add_cache_pin(Command& cache) {
  auto options = std::make_shared<Options>();
  Command& verb = cache.verb("pin", "Keep layers here with all their data");
  verb.positionals("REF", options->refs, "Layers of the store");
  verb.flag("--rm", options->remove, "Let them go again");
  verb.note("A pinned layer is neither evicted nor removed by dsec gc. dsec cache warm brings what is not here.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
