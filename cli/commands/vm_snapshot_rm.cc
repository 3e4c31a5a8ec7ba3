#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/engine/memory_snapshots.h"
#include "runners/vm/warm_store.h"

namespace dsec::cli {
namespace {

void run(const std::vector<std::string>& names, Invocation& call) {
  for (const std::string& name : names)
    if (!engine::MemorySnapshots(call.wiring().home()).remove(name) &&
        !runners::remove_warm_guest(call.wiring().home().root(), name))
      throw failure("there is no saved guest or sandbox " + quote(name)).hint("dsec vm snapshot ls");
}

}  // namespace

void add_vm_snapshot_rm(Command& group) {
  auto names = std::make_shared<std::vector<std::string>>();
  Command& verb = group.verb("rm", "Remove saved guests and sandboxes");
  verb.positionals("NAME", *names, "Saved guests and sandboxes, by their names");
  verb.note("What went on from them goes on.");
  verb.runs([names](Invocation& call) { run(*names, call); });
}

}  // namespace dsec::cli
