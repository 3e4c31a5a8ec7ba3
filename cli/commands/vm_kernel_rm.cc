#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "runners/vm/kernel_store.h"

namespace dsec::cli {
namespace {

void run(const std::vector<std::string>& names, Invocation& call) {
  for (const std::string& name : names)
    if (!runners::remove_kernel(call.wiring().home().root(), name))
      throw failure("there is no kernel " + quote(name)).hint("dsec vm kernel ls");
}

}  // namespace

void add_vm_kernel_rm(Command& group) {
  auto names = std::make_shared<std::vector<std::string>>();
  Command& verb = group.verb("rm", "Remove kernels");
  verb.positionals("NAME", *names, "Kernels, by their names");
  verb.note("Guests that run go on.");
  verb.runs([names](Invocation& call) { run(*names, call); });
}

}  // namespace dsec::cli
