#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/status_file.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> names;
  std::string status_file;
};

void run(const Options& options, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  for (const auto& name : options.names) {
    const engine::SandboxInfo info = engine.wait(name, std::nullopt);
    if (!info.main_result)
      throw failure("sandbox " + quote(name) + " ended without a command: " +
                    (info.reason.empty() ? std::string(engine::to_string(info.state)) : info.reason));
    if (call.out().json())
      call.out().json_line(to_json(info));
    else
      call.out().line(std::to_string(info.main_result->shell_code()));
    write_status(options.status_file, *info.main_result);
    call.exit_with(info.main_result->shell_code());
  }
}

}  // namespace

void add_wait(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("wait", "Wait until sandboxes have ended, and print their exit codes");
  verb.reaches(Command::Reach::Context);
  verb.positionals("SANDBOX", options->names, "Id, unique beginning of an id, or name");
  verb.passes_status_on(options->status_file);
  verb.note("The exit code is that of the last one's command.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
