#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/units.h"
#include "registry/gc/group_use.h"
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

void tell_groups(Output& out, const std::vector<registry::GroupUse>& groups, bool sets) {
  if (out.json()) {
    Json list = Json::array();
    for (const auto& group : groups)
      list.push_back({{sets ? "set" : "kind", group.name.empty() ? Json(nullptr) : Json(group.name)},
                      {"layers", group.layers},
                      {"missing", group.missing},
                      {"bytes", group.bytes},
                      {"alone", group.alone},
                      {"on_demand", group.on_demand}});
    return out.json({{sets ? "sets" : "kinds", list}});
  }
  Table table({sets ? "SET" : "KIND", "LAYERS", "SIZE", "ALONE", "ON DEMAND", ""});
  for (const auto& group : groups)
    table.row({group.name.empty() ? "(none)" : printable(group.name), std::to_string(group.layers),
               format_size(group.bytes), format_size(group.alone), group.on_demand ? format_size(group.on_demand) : "",
               group.missing ? std::to_string(group.missing) + " missing" : ""});
  out.table(table);
}

}  // namespace

void add_system_df(Command& system) {
  auto by = std::make_shared<std::string>("layer");
  Command& verb = system.verb("df", "Show what layers and sandboxes take on disk");
  verb.choice("--by", *by, {"layer", "kind", "set"},
              "Sum up by kind of layer, or by task set: each dsec.lock that was written here (default: layer)");
  verb.note(
      "A blob that several layers have is counted once in the total; ALONE is what removing a layer would free. A "
      "group "
      "counts each blob once; ALONE is what no other group has.");
  verb.runs([by](Invocation& call) {
    if (*by == "kind") return tell_groups(call.out(), registry::use_by_kind(call.wiring().store()), false);
    if (*by == "set") return tell_groups(call.out(), registry::use_by_set(call.wiring().store()), true);
    const registry::DiskUse use = registry::disk_use(call.wiring().store());
    if (call.out().json()) return call.out().json(to_json(use));
    print(call.out(), use);
  });
}

}  // namespace dsec::cli
