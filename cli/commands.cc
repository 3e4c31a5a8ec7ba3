#include "cli/commands.h"

#include "cli/app.h"
#include "cli/command.h"

namespace dsec::cli {

void declare_commands(Command& root) {
  add_completion(root);
  add_version(root);
}

}  // namespace dsec::cli
