#include "cli/completion.h"

#include <memory>

#include "cli/app.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"

namespace dsec::cli {

void add_completion(Command& root) {
  auto shell = std::make_shared<std::string>();
  Command& verb = root.verb("completion", "Print a completion script for a shell");
  verb.positional("SHELL", *shell, "bash, zsh or fish");
  verb.example("dsec completion bash > /etc/bash_completion.d/dsec");
  verb.example("source <(dsec completion zsh)");
  verb.example("dsec completion fish > ~/.config/fish/completions/dsec.fish");
  verb.runs([shell](Invocation& call) {
    Command all(nullptr, "dsec", "");
    declare_commands(all);
    call.out().raw(completion_script(*shell, all));
  });
}

}  // namespace dsec::cli
