#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "core/base/units.h"
#include "registry/registries.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string registry, layer;
};

void run(const Options& options, Invocation& call) {
  std::optional<LayerName> name;
  if (!options.layer.empty()) name = LayerName::parse(options.layer);
  std::vector<std::string> problems;
  Table table({"LAYER", "DIGEST", "SIZE", "PLATFORM"});
  for (const auto& tag :
       registry::registry_tags(registry::find_registry(Config::load(), options.registry), call.progress(), name)) {
    if (call.out().json())
      call.out().json_line({{"ref", tag.ref},
                            {"digest", tag.digest ? Json(tag.digest->str()) : Json(nullptr)},
                            {"bytes", tag.bytes},
                            {"platform", tag.platform},
                            {"problem", tag.problem.empty() ? Json(nullptr) : Json(tag.problem)}});
    else
      table.row({printable(tag.ref),
                 tag.digest    ? tag.digest->brief()
                 : tag.foreign ? "no layer"
                               : "damaged",
                 format_size(tag.bytes), printable(tag.platform)});
    if (!tag.problem.empty() && !tag.foreign) problems.push_back(tag.ref + ": " + tag.problem);
  }
  if (!call.out().json()) call.out().table(table);
  for (const std::string& problem : problems) call.progress().warn(problem);
  if (!problems.empty()) call.exit_with(1);
}

}  // namespace

void add_registry_tags(Command& registry) {
  auto options = std::make_shared<Options>();
  Command& verb = registry.verb("tags", "List the layers of a registry");
  verb.positional("NAME|URL", options->registry, "The registry");
  verb.optional_positional("LAYER", options->layer, "Only tags of this KIND/NAME");
  verb.note("With -o json, one object a line. Exit code 1: a tag or its layer cannot be read.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
