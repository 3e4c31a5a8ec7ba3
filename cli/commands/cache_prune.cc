#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/store_limit.h"
#include "cli/wiring.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/gc/evict.h"

namespace dsec::cli {
namespace {

struct Options {
  std::optional<std::uint64_t> to;
  bool dry_run = false;
};

void tell(Output& out, const registry::EvictResult& result, bool dry_run) {
  if (out.json()) {
    Json evicted = Json::array();
    for (const auto& one : result.evicted)
      evicted.push_back(
          {{"layer", one.layer}, {"blob", one.blob.str()}, {"bytes", one.bytes}, {"registry", one.registry}});
    return out.json({{"dry_run", dry_run},
                     {"evicted", evicted},
                     {"bytes", result.before - result.after},
                     {"store_bytes", result.after},
                     {"held", result.held},
                     {"warnings", result.warnings}});
  }
  for (const auto& one : result.evicted)
    out.line(one.layer + " " + format_size(one.bytes) + ", in " + printable(one.registry));
  out.line(std::string(dry_run ? "would free " : "freed ") + format_size(result.before - result.after) + ", " +
           format_size(result.after) + " stay" + (result.held.empty() ? "" : ": " + held_text(result)));
}

void run(const Options& options, Invocation& call) {
  const Config config = Config::load();
  const std::optional<std::uint64_t> to = options.to ? options.to : config.store_limit;
  if (!to)
    throw usage_error("how much the store may keep is not given, and config.yaml sets no limit")
        .hint("--to SIZE; --to 0 evicts all that can be had again");
  const registry::EvictResult result = registry::evict(call.wiring().store(),
                                                       {.to = *to,
                                                        .dry_run = options.dry_run,
                                                        .offline = config.offline.value_or(false),
                                                        .unmount_others = unmount_others(call.wiring())},
                                                       call.progress());
  for (const auto& warning : result.warnings) call.progress().warn(warning);
  call.end_progress();
  tell(call.out(), result, options.dry_run);
}

}  // namespace

void add_cache_prune(Command& cache) {
  auto options = std::make_shared<Options>();
  Command& verb = cache.verb("prune", "Evict data of layers that can be had again, the longest unused first");
  verb.size("--to", options->to, "Evict until the store has no more than this (default: the limit of config.yaml)");
  verb.flag("-n,--dry-run", options->dry_run, "Show what would go, and remove nothing");
  verb.note(
      "The layers stay known, and their data comes when it is read. Kept is what sandboxes use, pins and dsec.lock "
      "files "
      "name, or no registry has; each registry is asked before.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
