#include "cli/snapshot_request.h"

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {

void declare(Command& command, SnapshotFlags& flags) {
  command.flag("--scrub", flags.scrub, "Leave out caches, histories, logs, keys and the like (dsec-sources(7))");
  command.options("-l,--label", "KEY=VALUE", flags.labels, "Label of the layer");
  declare_op_id(command, flags.op_id);
}

void make_snapshot(Invocation& call, const SnapshotFlags& flags, const LayerRef& ref) {
  if (!ref.name || !ref.tag) throw usage_error(quote(ref.str()) + " names no new layer").hint("write NAME:TAG");
  const engine::Snapshot made = call.wiring().engine().snapshot(
      flags.sandbox, {*ref.name, *ref.tag, flags.scrub, parse_labels(flags.labels), operation_context(flags.op_id)});
  for (const std::string& warning : made.warnings) call.progress().warn(warning);
  if (made.collapsed > 0)
    call.progress().warn(std::to_string(made.collapsed) + " snapshots below became part of this one");
  call.end_progress();
  if (!call.out().json()) return call.out().line(ref.str());
  Json layers = Json::array();
  for (const Digest& layer : made.layers) layers.push_back(layer.str());
  call.out().json({{"ref", ref.str()},
                   {"digest", made.layer.str()},
                   {"layers", layers},
                   {"bytes", made.bytes},
                   {"collapsed", made.collapsed},
                   {"warnings", made.warnings}});
}

}  // namespace dsec::cli
