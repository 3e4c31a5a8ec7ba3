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
  std::string sandbox, ports;
};

// "8000:80", "0.0.0.0:8000:80", "[::1]:8000:80", "80": the port inside comes last.
void run(const Options& options, Invocation& call) {
  const std::size_t colon = options.ports.rfind(':');
  const std::string inside = options.ports.substr(colon == std::string::npos ? 0 : colon + 1);
  if (inside.empty() || inside.size() > 5 || inside.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(inside) > 65535 || std::stoi(inside) == 0)
    throw usage_error(quote(options.ports) + " does not end with a port").hint("dsec forward SANDBOX 8000:80");
  engine::Engine& engine = call.wiring().engine();
  const engine::SandboxInfo info = engine.inspect(options.sandbox);
  // The first connection resumes one that is paused.
  if (info.state != engine::SandboxState::Running && info.state != engine::SandboxState::Paused)
    throw usage_error("sandbox " + quote(options.sandbox) + " is " + std::string(engine::to_string(info.state)));
  std::string bound;
  const UniqueFd listener =
      engine::listen_at(colon == std::string::npos ? inside : options.ports.substr(0, colon), bound);
  if (call.out().json())
    call.out().json_line({{"listen", bound}, {"port", std::stoi(inside)}});
  else
    call.out().line(bound + " -> " + inside);
  std::mutex mutex;
  engine::forward_port(engine, info.id, listener.get(), static_cast<std::uint16_t>(std::stoi(inside)),
                       [&](const Error& error) {
                         const std::lock_guard lock(mutex);
                         report(error, call.out().format(), std::cerr);
                       });
}

}  // namespace

void add_forward(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("forward", "Bring connections to a port of this host into a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.positional("[[ADDRESS:]LOCAL:]PORT", options->ports,
                  "Where to listen here (default: 127.0.0.1 and the same port; 0: any), and the port inside");
  verb.note(
      "Prints where it listens, and goes on until it is interrupted or the sandbox ends. The sandbox needs no "
      "network.");
  verb.example("dsec forward web 8000:80");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
