#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/rebuild_layer.h"
#include "cli/report.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "registry/store/verify.h"

namespace dsec::cli {
namespace {

Json to_json(const registry::StoreProblem& problem) {
  return {{"layer", problem.layer},
          {"blob", problem.blob ? Json(problem.blob->str()) : Json(nullptr)},
          {"what", problem.what}};
}

std::string shown(const registry::StoreProblem& problem) {
  std::string text = problem.layer.empty() ? "" : printable(problem.layer) + ": ";
  if (problem.blob) text += "blob " + problem.blob->brief() + " ";
  return text + printable(problem.what);
}

struct Options {
  std::vector<std::string> refs;
  bool rebuild = false;
  RebuildFlags from;
};

void run(const Options& options, Invocation& call) {
  if (!options.rebuild && options.from.source) throw usage_error("--from goes with --rebuild");
  if (options.rebuild) {
    if (options.refs.size() != 1) throw usage_error("--rebuild takes one layer");
    return rebuild_layer(call.wiring().store().get(LayerRef::parse(options.refs[0])), options.from, call);
  }
  std::vector<Digest> layers;
  for (const auto& ref : options.refs) layers.push_back(call.wiring().store().get(LayerRef::parse(ref)).digest);
  const registry::VerifyResult result = registry::verify_store(call.wiring().store(), layers, call.progress());
  call.end_progress();
  if (call.out().json()) {
    Json problems = Json::array();
    for (const auto& problem : result.problems) problems.push_back(to_json(problem));
    call.out().json({{"layers", result.layers},
                     {"blobs", result.blobs},
                     {"bytes", result.bytes},
                     {"on_demand", result.on_demand},
                     {"problems", problems}});
  } else {
    for (const auto& problem : result.problems) call.out().line(shown(problem));
    call.out().line(std::to_string(result.layers) + " layers, " + std::to_string(result.blobs) + " blobs, " +
                    format_size(result.bytes) +
                    (result.on_demand ? " (" + std::to_string(result.on_demand) + " more are loaded on demand)" : "") +
                    ": " +
                    (result.problems.empty() ? "all right" : std::to_string(result.problems.size()) + " problems"));
  }
  if (!result.problems.empty()) call.exit_with(kDifference);
}

}  // namespace

void add_layer_verify(Command& layer) {
  auto options = std::make_shared<Options>();
  Command& verb = layer.verb("verify", "Compare layers with their digests, or with what their source gives now");
  verb.positionals("REF", options->refs, "Layers (default: the whole store)", 0);
  verb.flag("--rebuild", options->rebuild, "Make the layer again from its source and compare");
  verb.option("--from", "SOURCE", options->from.source,
              "With --rebuild: the source, as for dsec import (default: what dsec.yaml says)");
  declare(verb, options->from.project);
  verb.note("Exit code 3 when something differs. A damaged blob is marked: importing or pulling it again replaces it.");
  verb.note(
      "--rebuild leaves nothing in the store. Layers with steps that run commands, and layers written by another "
      "mkfs.erofs, are refused.");
  verb.example("dsec layer verify --rebuild workspace/toolz --from git:./toolz@3f2c9d1");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
