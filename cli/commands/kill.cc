#include <cstring>
#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

int signal_of(std::string name) {
  if (!name.empty() && name.size() <= 2 && name.find_first_not_of("0123456789") == std::string::npos) {
    const int number = std::stoi(name);
    if (number >= 1 && number <= 64) return number;
  }
  const std::string wanted = name.starts_with("SIG") ? name.substr(3) : name;
  for (int number = 1; number < 32; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && wanted == known) return number;
  }
  throw usage_error("there is no signal " + quote(name)).hint("KILL, TERM, INT, HUP, USR1 or a number of 1 to 64");
}

}  // namespace

void add_kill(Command& root) {
  struct Options {
    std::string sandbox, signal = "KILL";
    std::vector<std::string> commands;
  };
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("kill", "Send a signal to commands of a sandbox");
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.positionals("EXEC_ID", options->commands, "What dsec commands shows");
  verb.option("-s,--signal", "SIGNAL", options->signal, "Name or number (default: KILL)");
  verb.note("dsec stop ends the sandbox itself.");
  verb.runs([options](Invocation& call) {
    const int signo = signal_of(options->signal);
    for (const auto& each : options->commands) call.wiring().engine().signal(options->sandbox, each, signo);
  });
}

}  // namespace dsec::cli
