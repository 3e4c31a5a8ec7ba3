#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/lock_files.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/collect/collect.h"
#include "registry/registries.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string registry;
  bool dry_run = false, allow_any_fs = false;
  std::optional<std::chrono::milliseconds> grace;
  std::vector<std::string> locks;
};

Json to_json(const std::vector<registry::CollectItem>& items) {
  Json list = Json::array();
  for (const auto& item : items)
    list.push_back({{"kind", registry::to_string(item.kind)}, {"name", item.name}, {"bytes", item.bytes}});
  return list;
}

void tell(Output& out, const registry::CollectResult& result, bool dry_run) {
  if (out.json())
    return out.json({{"dry_run", dry_run},
                     {"removed", to_json(result.removed)},
                     {"bytes", result.bytes},
                     {"waiting", to_json(result.waiting)},
                     {"waiting_bytes", result.waiting_bytes},
                     {"next", result.waiting.empty() ? Json(nullptr) : Json(iso_time(result.next))},
                     {"layers", result.layers},
                     {"warnings", result.warnings}});
  for (const auto& item : result.removed)
    out.line(std::string(registry::to_string(item.kind)) + " " + printable(item.name));
  if (!result.waiting.empty())
    out.line(std::to_string(result.waiting.size()) + " more (" + format_size(result.waiting_bytes) + ") may go from " +
             iso_time(result.next) + " on");
  if (result.frees_itself)
    out.line(std::to_string(result.layers) + " layers stay; the registry frees blobs by its own garbage collection");
  else
    out.line(std::string(dry_run ? "would free " : "freed ") + format_size(result.bytes) + ", " +
             std::to_string(result.layers) + " layers stay");
}

void run(const Options& options, Invocation& call) {
  registry::CollectOptions collect{.dry_run = options.dry_run};
  if (options.grace) collect.grace = std::chrono::duration_cast<std::chrono::seconds>(*options.grace);
  for (const auto& [layer, file] : locked_layers(options.locks)) collect.keep.insert(layer);
  registry::RegistryAddress address = registry::find_registry(Config::load(), options.registry);
  address.allow_any_fs = address.allow_any_fs || options.allow_any_fs;
  const registry::CollectResult result =
      registry::collect_registry(address, call.wiring().home().host_id(), collect, call.progress());
  for (const auto& warning : result.warnings) call.progress().warn(warning);
  call.end_progress();
  tell(call.out(), result, options.dry_run);
  if (!result.warnings.empty()) call.exit_with(1);
}

}  // namespace

void add_registry_gc(Command& registry) {
  auto options = std::make_shared<Options>();
  Command& verb = registry.verb("gc", "Remove layers that no tag and no lock names, and blobs that no layer names");
  verb.positional("NAME|URL", options->registry, "The registry");
  verb.flag("-n,--dry-run", options->dry_run, "Show what would go, and change nothing");
  verb.duration("--grace", options->grace, "Keep what was not seen without a name for so long (default: 12h)");
  declare_locks(verb, options->locks, "Also keep the layers that a dsec.lock names");
  verb.flag("--allow-any-fs", options->allow_any_fs, "Accept a 3fs: URL that is no 3FS mount");
  verb.note(
      "Kept are tagged layers, what they were built on or stand on, and what publishers at work have announced. The "
      "first run notes what has no name; a later one removes what has had none since.");
  verb.example("dsec registry gc s3://bucket/layers --locks tasks/a/dsec.lock --locks tasks/b/dsec.lock --dry-run");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
