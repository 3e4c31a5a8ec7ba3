#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/engine/port_forward.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, listen = "127.0.0.1:0";
};

void run(const Options& options, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  const engine::SandboxInfo info = engine.inspect(options.sandbox);
  // Refuses what has none before anything listens.
  engine.connect_screen(info.id);
  std::string bound;
  const UniqueFd listener = engine::listen_at(options.listen, bound);
  if (call.out().json())
    call.out().json_line({{"listen", bound}});
  else
    call.out().line(bound);
  std::mutex mutex;
  engine::forward_connections(
      engine, info.id, listener.get(), [&] { return engine.connect_screen(info.id); },
      [&](const Error& error) {
        const std::lock_guard lock(mutex);
        report(error, call.out().format(), std::cerr);
      });
}

}  // namespace

void add_vm_vnc(Command& vm) {
  auto options = std::make_shared<Options>();
  Command& verb = vm.verb("vnc", "Bring the screen of a fullvm to a viewer of VNC");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.option("--listen", "[ADDRESS:]PORT", options->listen, "Where viewers connect (default: any port of 127.0.0.1)");
  verb.note(
      "Prints where it listens, and goes on until it is interrupted or the machine ends. No password is asked for: who "
      "can connect there sees the screen and has its keyboard. What is done so is not recorded.");
  verb.example("dsec vm vnc desktop --listen 5901");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
