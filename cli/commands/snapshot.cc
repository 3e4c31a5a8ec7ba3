#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/snapshot_request.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

// Sorts by time.
std::string time_tag() {
  using namespace std::chrono;
  const auto now = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32], milliseconds[8];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  std::snprintf(milliseconds, sizeof milliseconds, "-%03d",
                static_cast<int>(duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000));
  return std::string(text) + milliseconds;
}

LayerRef ref_of(Invocation& call, const SnapshotFlags& flags) {
  if (flags.name.empty() && !flags.op_id.empty())
    throw usage_error("with --op-id the layer needs a name: the default one is another each time")
        .hint("dsec snapshot --op-id NAME SANDBOX snapshot/NAME:TAG");
  if (flags.name.empty())
    return LayerRef::parse("snapshot/" + call.wiring().engine().inspect(flags.sandbox).id + ":" + time_tag());
  LayerRef ref = LayerRef::parse(flags.name.find('/') == std::string::npos ? "snapshot/" + flags.name : flags.name);
  if (ref.name && ref.name->kind != LayerKind::Snapshot)
    throw usage_error(quote(flags.name) + " is no name of a snapshot")
        .hint("dsec snapshot SANDBOX snapshot/NAME:TAG")
        .hint("dsec commit SANDBOX workspace/NAME:TAG makes a workspace");
  return ref;
}

}  // namespace

void add_snapshot(Command& root) {
  auto flags = std::make_shared<SnapshotFlags>();
  Command& verb = root.verb("snapshot", "Make a layer of what a sandbox has changed, on the layers that it has");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", flags->sandbox, "Id, unique beginning of an id, or name");
  verb.optional_positional("NAME[:TAG]", flags->name, "The layer snapshot/NAME (default: id of the sandbox and time)");
  declare(verb, *flags);
  verb.note(
      "The sandbox stands still while it is read, and goes on. Processes and settings are not part of a snapshot; dsec "
      "fork keeps the settings. dsec run with a snapshot takes the layers below it by itself.");
  verb.example("dsec snapshot dev after-setup:1 && dsec run snapshot/after-setup:1 -- pytest -q");
  verb.runs([flags](Invocation& call) {
    require_root(call.wiring(), "snapshot");
    make_snapshot(call, *flags, ref_of(call, *flags));
  });
}

}  // namespace dsec::cli
