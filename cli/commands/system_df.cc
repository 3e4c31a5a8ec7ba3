#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/units.h"
#include "registry/store/disk_use.h"

namespace dsec::cli {
namespace {

Json to_json(const registry::DiskUse& use) {
  Json layers = Json::array(), sandboxes = Json::array();
  for (const auto& layer : use.layers)
    layers.push_back({{"digest", layer.digest.str()},
                      {"name", layer.name},
                      {"tags", layer.tags},
                      {"bytes", layer.bytes},
                      {"exclusive", layer.exclusive},
                      {"shared", layer.shared},
                      {"in_place", layer.in_place},
                      {"on_demand", layer.on_demand},
                      {"on_demand_here", layer.on_demand_here},
                      {"reclaimable", layer.reclaimable}});
  for (const auto& sandbox : use.sandboxes) sandboxes.push_back({{"id", sandbox.id}, {"bytes", sandbox.bytes}});
  return {{"layers", layers},
          {"sandboxes", sandboxes},
          {"layers_bytes", use.layers_bytes},
          {"cache_bytes", use.cache_bytes},
          {"sandboxes_bytes", use.sandboxes_bytes},
          {"index_bytes", use.index_bytes},
          {"reclaimable_bytes", use.reclaimable_bytes}};
}

std::string shown(const registry::LayerUse& layer) {
  std::string text;
  for (const auto& tag : layer.tags) text += (text.empty() ? "" : " ") + tag;
  return text.empty() ? layer.name : text;
}

void print(Output& out, const registry::DiskUse& use) {
  Table layers({"LAYER", "DIGEST", "SIZE", "SHARED", "ALONE", "IN REGISTRY", "ON DEMAND", ""});
  for (const auto& layer : use.layers)
    layers.row({shown(layer), layer.digest.brief(), format_size(layer.bytes), format_size(layer.shared),
                format_size(layer.exclusive), layer.in_place ? format_size(layer.in_place) : "",
                layer.on_demand ? format_size(layer.on_demand_here) + " of " + format_size(layer.on_demand) : "",
                layer.reclaimable ? "reclaimable" : ""});
  if (!use.layers.empty()) out.table(layers), out.line("");
  Table sandboxes({"SANDBOX", "SIZE"});
  for (const auto& sandbox : use.sandboxes) sandboxes.row({sandbox.id, format_size(sandbox.bytes)});
  if (!use.sandboxes.empty()) out.table(sandboxes), out.line("");
  Table sums({"TOTAL", "SIZE"});
  sums.row({"layers", format_size(use.layers_bytes)});
  sums.row({"sandboxes", format_size(use.sandboxes_bytes)});
  sums.row({"cache", format_size(use.cache_bytes)});
  sums.row({"index", format_size(use.index_bytes)});
  sums.row({"reclaimable", format_size(use.reclaimable_bytes)});
  out.table(sums);
}

}  // namespace

void add_system_df(Command& system) {
  Command& verb = system.verb("df", "Show what layers and sandboxes take on disk");
  verb.note("A blob that several layers have is counted once in the total; ALONE is what removing a layer would free.");
  verb.runs([](Invocation& call) {
    const registry::DiskUse use = registry::disk_use(call.wiring().store());
    if (call.out().json()) return call.out().json(to_json(use));
    print(call.out(), use);
  });
}

}  // namespace dsec::cli
