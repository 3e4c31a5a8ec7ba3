#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/lock_files.h"
#include "cli/publish_text.h"
#include "cli/registry_flags.h"
#include "cli/wiring.h"
#include "registry/sync.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> refs, locks;
  RegistryFlag from, to;
};

void run(const Options& options, Invocation& call) {
  std::vector<LayerRef> refs;
  for (const auto& ref : options.refs) refs.push_back(LayerRef::parse(ref));
  const std::vector<Lock> locks = read_locks(options.locks);
  const registry::RegistryAddress to = find(options.to);
  registry::RegistryAddress from = find(options.from);
  from.allow_any_fs = from.allow_any_fs || options.to.allow_any_fs;
  const registry::PublishResult result =
      registry::sync_registries(from, to, refs, locks, call.wiring().home(), call.progress());
  call.end_progress();
  tell(call.out(), result);
}

}  // namespace

void add_registry_sync(Command& registry) {
  auto options = std::make_shared<Options>();
  Command& verb = registry.verb("sync", "Copy layers and their tags from one registry to another");
  verb.positionals("REF", options->refs, "Layers (default: all of them)", 0);
  declare_source(verb, "Where from", options->from);
  declare(verb, "--to", "Where to", options->to);
  declare_locks(verb, options->locks, "The layers that a dsec.lock names");
  verb.note(
      "Only what is missing is copied, verified by digest on the way, and not through the store. It may be repeated, "
      "and goes on where it was.");
  verb.example("dsec registry sync --from oci://registry.example/team --to 3fs:///mnt/3fs/layers");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
