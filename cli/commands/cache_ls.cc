#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/units.h"
#include "registry/gc/working_layers.h"

namespace dsec::cli {
namespace {

Json to_json(const registry::WorkingLayer& row) {
  Json sources = Json::array();
  for (const auto& source : row.sources) sources.push_back(source.registry);
  return {{"digest", row.layer.digest.str()},
          {"name", row.layer.manifest.name.str()},
          {"tags", row.layer.tags},
          {"bytes", row.bytes},
          {"shared", row.shared},
          {"on_demand", row.away},
          {"on_demand_here", row.cached},
          {"last_used", iso_time(row.last_used)},
          {"pinned", row.pinned},
          {"registries", sources},
          {"held", registry::to_string(row.hold)},
          {"holder", row.holder}};
}

std::string shown(const registry::WorkingLayer& row) {
  std::string text;
  for (const auto& tag : row.layer.tags) text += (text.empty() ? "" : " ") + tag;
  return text.empty() ? row.layer.manifest.name.str() : text;
}

void run(Invocation& call) {
  registry::LeasedLayers leases;
  leases.refresh(call.wiring().home());
  Table table({"LAYER", "DIGEST", "HERE", "SHARED", "ON DEMAND", "LAST USED", "REGISTRY", "HELD"});
  for (const auto& row : registry::working_layers(call.wiring().store(), leases)) {
    if (call.out().json()) {
      call.out().json_line(to_json(row));
      continue;
    }
    const std::string more = row.sources.size() > 1 ? " +" + std::to_string(row.sources.size() - 1) : "";
    table.row({shown(row), row.layer.digest.brief(), format_size(row.bytes), format_size(row.shared),
               row.away ? format_size(row.cached) + " of " + format_size(row.away) : "", age(row.last_used),
               row.sources.empty() ? "" : printable(row.sources.front().registry) + more,
               std::string(registry::to_string(row.hold)) +
                   (row.pinned && row.hold != registry::Hold::Pin ? ", pinned" : "")});
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_cache_ls(Command& cache) {
  Command& verb = cache.verb("ls", "List layers with where they can be had again, the longest unused first");
  verb.note("HELD tells why data stays here; layers without it are evicted first. With -o json, one object a line.");
  verb.runs(run);
}

}  // namespace dsec::cli
