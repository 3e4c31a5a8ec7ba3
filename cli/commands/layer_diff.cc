#include "layers/compose/layer_diff.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {
using Kind = layers::LayerDifference::Kind;

struct Options {
  std::string from, to;
};

void run(const Options& options, Invocation& call) {
  engine::LayerStore& store = call.wiring().layer_store();
  const engine::StoredLayer from = store.get(LayerRef::parse(options.from));
  const engine::StoredLayer to = store.get(LayerRef::parse(options.to));
  layers::diff_layers(store, from, to, [&](const layers::LayerDifference& difference) {
    call.exit_with(kDifference);
    std::string reasons;
    for (const auto& reason : difference.reasons) reasons += (reasons.empty() ? "" : ", ") + reason;
    const char* letter = difference.kind == Kind::Added ? "A" : difference.kind == Kind::Deleted ? "D" : "C";
    if (!call.out().json())
      return call.out().line(std::string(letter) + " /" + printable(difference.path) +
                             (reasons.empty() ? "" : " (" + reasons + ")"));
    Json json = bytes_to_json("/" + difference.path);
    if (json.contains("data")) json = {{"path", json["data"]}};
    json["kind"] = difference.kind == Kind::Added ? "added" : difference.kind == Kind::Deleted ? "deleted" : "changed";
    json["reasons"] = difference.reasons;
    call.out().json_line(json);
  });
}

}  // namespace

void add_layer_diff(Command& layer) {
  auto options = std::make_shared<Options>();
  Command& verb = layer.verb("diff", "Compare the files of two layers");
  verb.positional("FROM", options->from, "One layer");
  verb.positional("TO", options->to, "The other");
  verb.note(
      "A: only in TO, D: only in FROM, C: different, and in what. Exit code 3 when they differ. With -o json, one "
      "object a line.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
