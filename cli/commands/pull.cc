#include "registry/pull.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/fetch.h"
#include "cli/invocation.h"
#include "cli/registry_flags.h"
#include "cli/wiring.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> refs;
  RegistryFlag from;
  bool on_demand = false;
  std::optional<bool> offline;
};

void tell(Output& out, const std::string& text, const registry::PullResult& result) {
  if (out.json())
    out.json_line({{"ref", text},
                   {"digest", result.layer.digest.str()},
                   {"bytes_copied", result.bytes_copied},
                   {"bytes_present", result.bytes_present},
                   {"bytes_in_place", result.bytes_in_place},
                   {"bytes_on_demand", result.bytes_on_demand}});
  else
    out.line(text + " " + result.layer.digest.str() + ": " + format_size(result.bytes_copied) + " copied" +
             (result.bytes_in_place ? ", " + format_size(result.bytes_in_place) + " read in place" : "") +
             (result.bytes_on_demand ? ", " + format_size(result.bytes_on_demand) + " loaded on demand" : ""));
}

void run_offline(const Options& options, Invocation& call) {
  std::vector<LayerRef> refs;
  for (const auto& text : options.refs) refs.push_back(LayerRef::parse(text));
  const auto layers = find_or_pull(call, refs, {}, registry::PullMode::Whole, true);
  for (std::size_t i = 0; i < layers.size(); ++i)
    tell(call.out(), options.refs[i], {.layer = layers[i], .bytes_present = layers[i].manifest.total_size()});
}

void run(const Options& options, Invocation& call) {
  if (is_offline(options.offline)) return run_offline(options, call);
  const registry::RegistryAddress address = find(options.from);
  const registry::PullMode mode = pull_mode(options.on_demand);
  for (const auto& text : options.refs) {
    const registry::PullResult result =
        registry::pull(call.wiring().store(), LayerRef::parse(text), address, call.progress(), mode);
    call.end_progress();
    tell(call.out(), text, result);
  }
}

}  // namespace

void add_pull(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("pull", "Copy layers from a registry into the store");
  verb.positionals("REF", options->refs, "Layers");
  declare(verb, "--from", "Where from", options->from);
  declare_on_demand(verb, options->on_demand);
  declare_offline(verb, options->offline);
  verb.note("Every digest is verified while copying. With -o json, one object a line.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
