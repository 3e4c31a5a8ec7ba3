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

std::unique_ptr<layers::Source> source_of(const engine::StoredLayer& layer, const RebuildFlags& flags,
                                          const std::filesystem::path& spool, const engine::OpenRemoteImage& images) {
  if (flags.source) return layers::open_source(*flags.source, {.directory = {}, .spool = spool, .images = images});
  if (!std::filesystem::exists(flags.project.file))
    throw usage_error("where " + layer.manifest.name.str() + " is made from is not known")
        .hint("--from SOURCE, as it was given to dsec import, or --file with the dsec.yaml that makes it");
  const layers::Project project = load(flags.project);
  for (const layers::LayerRecipe& recipe : project.layers) {
    if (recipe.name != layer.manifest.name || recipe.from.empty()) continue;
    const std::string history = recipe.history.empty() ? "" : "?history=" + recipe.history;
    return layers::open_source(recipe.from + history,
                               {.directory = project.directory, .spool = spool, .images = images});
  }
  throw usage_error(flags.project.file + " makes no " + layer.manifest.name.str() + " from a source")
      .hint("--from SOURCE, as it was given to dsec import");
}

}  // namespace

void rebuild_layer(const engine::StoredLayer& layer, const RebuildFlags& flags, Invocation& call) {
  const auto source = source_of(layer, flags, call.wiring().home().cache(), call.wiring().images());
  const layers::Rebuilt again = layers::rebuild(call.wiring().layer_store(), layer.manifest, *source, call.progress());
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
