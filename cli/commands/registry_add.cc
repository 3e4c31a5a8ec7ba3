#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "registry/registries.h"

namespace dsec::cli {

void add_registry_add(Command& registry) {
  auto entry = std::make_shared<RegistryEntry>();
  Command& verb = registry.verb("add", "Give a registry a name");
  verb.positional("NAME", entry->name, "Name for --to, --from and --registry");
  verb.positional("URL", entry->url, registry::kRegistryForms);
  verb.flag("--in-place", entry->in_place, "Let the kernel read data where it lies: fast on 3FS, but not verified");
  verb.flag("--allow-any-fs", entry->allow_any_fs, "Accept a 3fs: URL that is no 3FS mount");
  verb.option("--endpoint", "URL", entry->endpoint, "Server of an s3: registry (default: as the environment says)");
  verb.option("--region", "REGION", entry->region, "Region of an s3: registry (default: as the environment says)");
  auto path_style = std::make_shared<bool>(false);
  verb.flag("--path-style", *path_style, "Name the bucket of an s3: registry in the path, not in the host");
  verb.example("dsec registry add team 3fs:///hf3fs/mnt/layers --in-place");
  verb.example("dsec registry add cloud s3://layers/team --endpoint https://objects.example");
  verb.runs([entry, path_style](Invocation&) {
    if (*path_style) entry->path_style = true;
    registry::add_registry(Config::load(), *entry);
  });
}

void add_registry_rm(Command& registry) {
  auto name = std::make_shared<std::string>();
  Command& verb = registry.verb("rm", "Forget the name of a registry; its layers stay");
  verb.positional("NAME", *name, "Name of the registry");
  verb.runs([name](Invocation&) { registry::remove_registry(Config::load(), *name); });
}

}  // namespace dsec::cli
