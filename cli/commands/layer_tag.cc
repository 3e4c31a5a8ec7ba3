#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "registry/store/local_store.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string ref, target;
};

void run(const Options& options, Invocation& call) {
  const LayerRef target = LayerRef::parse(options.target);
  if (!target.name || !target.tag)
    throw usage_error(quote(options.target) + " is no name for a tag").hint("write KIND/NAME:TAG");
  const engine::StoredLayer layer = call.wiring().store().get(LayerRef::parse(options.ref));
  call.wiring().store().tag(layer.digest, *target.name, *target.tag);
}

}  // namespace

void add_layer_tag(Command& layer) {
  auto options = std::make_shared<Options>();
  Command& verb = layer.verb("tag", "Give a layer another tag");
  verb.positional("REF", options->ref, "The layer");
  verb.positional("NEW", options->target, "KIND/NAME:TAG; a tag of that name moves");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
