#include "cli/commands.h"

#include "cli/app.h"
#include "cli/command.h"

namespace dsec::cli {

void declare_commands(Command& root) {
  add_run(root);
  add_create(root);
  add_exec(root);
  add_shell(root);
  add_attach(root);
  add_ps(root);
  add_inspect(root);
  add_logs(root);
  add_diff(root);
  add_stats(root);
  add_stop(root);
  add_rm(root);
  add_wait(root);
  add_completion(root);
  add_version(root);
}

}  // namespace dsec::cli
