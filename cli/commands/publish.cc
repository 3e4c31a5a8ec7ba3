#include "registry/publish.h"

#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/publish_text.h"
#include "cli/registry_flags.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> refs;
  RegistryFlag to;
  bool verify = false;
};

void run(const Options& options, Invocation& call) {
  const registry::RegistryAddress address = find(options.to);
  std::vector<LayerRef> refs;
  for (const auto& ref : options.refs) refs.push_back(LayerRef::parse(ref));
  const registry::PublishResult result =
      registry::publish(call.wiring().store(), refs, address, {.verify_existing = options.verify}, call.progress());
  call.end_progress();
  tell(call.out(), result);
}

}  // namespace

void add_publish(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("publish", "Copy layers from the store into a registry");
  verb.positionals("REF", options->refs, "Layers");
  declare(verb, "--to", "Where to", options->to);
  verb.flag("--verify-existing", options->verify, "Also read blobs that the registry has already");
  verb.note(
      "Only what is missing is copied, each file verified after writing and then named. It may be repeated, and "
      "many may publish at once.");
  verb.example("dsec publish base/python:3.11 workspace/toolz --to file:///srv/layers");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
