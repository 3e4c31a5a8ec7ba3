#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/snapshot_request.h"
#include "core/base/error.h"

namespace dsec::cli {

void add_commit(Command& root) {
  auto flags = std::make_shared<SnapshotFlags>();
  Command& verb = root.verb("commit", "Make a workspace of a sandbox's workspace and what it has changed");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", flags->sandbox, "Id, unique beginning of an id, or name");
  verb.positional("REF", flags->name, "The layer: workspace/NAME[:TAG]");
  declare(verb, *flags);
  verb.note(
      "The workspace stands on the sandbox's base alone and can be used with other toolkits; snapshots of the stack "
      "become part of it. What was changed in files of toolkits stays hidden below them, and is told.");
  verb.example("dsec commit dev workspace/toolz:fixed && dsec run base/python:3.11 workspace/toolz:fixed -- pytest");
  verb.runs([flags](Invocation& call) {
    require_root(call.wiring(), "commit");
    const LayerRef ref = LayerRef::parse(flags->name);
    if (!ref.name || ref.name->kind != LayerKind::Workspace)
      throw usage_error(quote(flags->name) + " is no name of a workspace")
          .hint("dsec commit SANDBOX workspace/NAME:TAG")
          .hint("dsec snapshot SANDBOX NAME:TAG keeps all layers as they are");
    make_snapshot(call, *flags, ref);
  });
}

}  // namespace dsec::cli
