#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"

namespace dsec::cli {

void add_create(Command& root) {
  auto flags = std::make_shared<SandboxFlags>();
  Command& verb = root.verb("create", "Start a sandbox that runs nothing yet");
  verb.reaches(Command::Reach::Context);
  declare(verb, *flags);
  verb.note("Commands enter it with dsec exec; it lives until dsec stop, its lifetime or idleness ends it.");
  verb.example("dsec create --name dev --idle 1h toolz-1");
  verb.runs([flags](Invocation& call) {
    const SandboxSpec spec = compose(call, *flags);
    require_root(call.wiring(), "create");
    tell_id(call.out(), "id", call.wiring().engine().create(spec).id);
  });
}

}  // namespace dsec::cli
