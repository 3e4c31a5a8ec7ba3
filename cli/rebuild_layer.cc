#include "cli/rebuild_layer.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "layers/build/project.h"
#include "layers/open_source.h"
#include "layers/rebuild.h"

namespace dsec::cli {
namespace {

layers::Project project_of(const engine::StoredLayer& layer, const RebuildFlags& flags, const std::string& otherwise) {
  if (!std::filesystem::exists(flags.project.file))
    throw usage_error("where " + layer.manifest.name.str() + " is made from is not known").hint(otherwise);
  return load(flags.project);
}

layers::Rebuilt from_source(const engine::StoredLayer& layer, const RebuildFlags& flags, Invocation& call) {
  Wiring& wiring = call.wiring();
  const auto rebuild = [&](const std::string& source, const std::filesystem::path& directory) {
    const auto opened = layers::open_source(
        source, {.directory = directory, .spool = wiring.home().cache(), .images = wiring.images()});
    return layers::rebuild(wiring.layer_store(), layer.manifest, *opened, call.progress());
  };
  if (flags.source) return rebuild(*flags.source, {});
  const std::string otherwise = "--from SOURCE, as it was given to dsec import";
  const layers::Project project = project_of(layer, flags, otherwise + ", or --file with the dsec.yaml that makes it");
  for (const layers::LayerRecipe& recipe : project.layers) {
    if (recipe.name != layer.manifest.name || recipe.from.empty()) continue;
    const std::string history = recipe.history.empty() ? "" : "?history=" + recipe.history;
    return rebuild(recipe.from + history, project.directory);
  }
  throw usage_error(flags.project.file + " makes no " + layer.manifest.name.str() + " from a source").hint(otherwise);
}

layers::Rebuilt from_steps(const engine::StoredLayer& layer, const RebuildFlags& flags, Invocation& call) {
  if (flags.source)
    throw usage_error("it was made by build steps, and so from no source").hint("--file instead of --from");
  Wiring& wiring = call.wiring();
  const layers::Project project = project_of(layer, flags, "--file with the dsec.yaml that makes it");
  for (const layers::LayerRecipe& recipe : project.layers)
    if (recipe.name == layer.manifest.name && recipe.from.empty())
      return layers::rebuild_steps(wiring.layer_store(), layer.manifest, project, recipe,
                                   {.spool = wiring.home().cache(), .images = wiring.images()}, call.progress());
  throw usage_error(flags.project.file + " makes no " + layer.manifest.name.str() + " by steps")
      .hint("--file with the dsec.yaml that does");
}

}  // namespace

void rebuild_layer(const engine::StoredLayer& layer, const RebuildFlags& flags, Invocation& call) {
  const bool by_steps = layer.manifest.provenance.source == "build";
  const layers::Rebuilt again = by_steps ? from_steps(layer, flags, call) : from_source(layer, flags, call);
  call.end_progress();
  if (call.out().json()) {
    call.out().json(
        {{"layer", layer.digest.str()}, {"rebuilt", again.digest.str()}, {"differences", again.differences}});
  } else {
    for (const std::string& line : again.differences) call.out().line(printable(line));
    call.out().line(layer.manifest.name.str() + " " + again.digest.str() +
                    (again.differences.empty() ? ": the same layer" : ": another layer"));
  }
  if (!again.differences.empty()) call.exit_with(kDifference);
}

}  // namespace dsec::cli
