#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/layer_json.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/units.h"
#include "registry/store/local_store.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string kind;
  std::vector<std::string> labels;
  bool quiet = false, all = false;
};

bool wanted(const engine::StoredLayer& layer, const Options& options) {
  if (!options.kind.empty() && to_string(layer.manifest.name.kind) != options.kind) return false;
  for (const auto& [key, value] : parse_labels(options.labels)) {
    const auto found = layer.labels.find(key);
    if (found == layer.labels.end() || (!value.empty() && found->second != value)) return false;
  }
  return options.all || !layer.tags.empty();
}

void run(const Options& options, Invocation& call) {
  Output& out = call.out();
  Table table({"LAYER", "DIGEST", "SIZE", "PLATFORM", "ADDED"});
  for (const engine::StoredLayer& layer : call.wiring().store().list()) {
    if (!wanted(layer, options)) continue;
    const bool on_demand = call.wiring().is_on_demand(layer);
    std::vector<std::string> names = layer.tags;
    if (names.empty()) names.push_back(layer.manifest.name.str() + "@" + layer.digest.str());
    if (out.json() && !options.quiet) {
      out.json_line(to_json(layer, on_demand));
      continue;
    }
    for (const auto& name : names) {
      if (options.quiet)
        out.line(name);
      else
        table.row({name, layer.digest.brief(),
                   format_size(layer.manifest.total_size()) + (layer.in_place ? ", in place, unverified" : "") +
                       (on_demand ? ", on demand" : ""),
                   layer.manifest.platform, age(layer.added)});
    }
  }
  if (!out.json() && !options.quiet) out.table(table);
}

}  // namespace

void add_layer_ls(Command& layer) {
  auto options = std::make_shared<Options>();
  Command& verb = layer.verb("ls", "List layers of the store");
  verb.choice("--kind", options->kind, {"base", "workspace", "toolkit", "snapshot"}, "Only those of this kind");
  verb.options("-l,--label", "KEY[=VALUE]", options->labels, "Only those with this label");
  verb.flag("-a,--all", options->all, "Also those without a tag");
  verb.flag("-q,--quiet", options->quiet, "References only");
  verb.note("With -o json, one object a line.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
