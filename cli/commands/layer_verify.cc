#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/wiring.h"
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

void run(const std::vector<std::string>& refs, Invocation& call) {
  std::vector<Digest> layers;
  for (const auto& ref : refs) layers.push_back(call.wiring().store().get(LayerRef::parse(ref)).digest);
  const registry::VerifyResult result = registry::verify_store(call.wiring().store(), layers, call.progress());
  call.end_progress();
  if (call.out().json()) {
    Json problems = Json::array();
    for (const auto& problem : result.problems) problems.push_back(to_json(problem));
    call.out().json(
        {{"layers", result.layers}, {"blobs", result.blobs}, {"bytes", result.bytes}, {"problems", problems}});
  } else {
    for (const auto& problem : result.problems) call.out().line(shown(problem));
    call.out().line(std::to_string(result.layers) + " layers, " + std::to_string(result.blobs) + " blobs, " +
                    format_size(result.bytes) + ": " +
                    (result.problems.empty() ? "all right" : std::to_string(result.problems.size()) + " problems"));
  }
  if (!result.problems.empty()) call.exit_with(kDifference);
}

}  // namespace

void add_layer_verify(Command& layer) {
  auto refs = std::make_shared<std::vector<std::string>>();
  Command& verb = layer.verb("verify", "Compare layers with their digests");
  verb.positionals("REF", *refs, "Layers (default: the whole store)", 0);
  verb.note("Exit code 3 when something differs. A damaged blob is marked: importing or pulling it again replaces it.");
  verb.runs([refs](Invocation& call) { run(*refs, call); });
}

}  // namespace dsec::cli
