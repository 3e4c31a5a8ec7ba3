#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/attend.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/replay_sandbox.h"
#include "cli/report.h"
#include "cli/root.h"
#include "cli/sandbox_flags.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "core/engine/replay.h"
#include "layers/git/line_diff.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string what, normalise;
  std::optional<std::uint64_t> until;
  bool check = false, shell = false, keep_going = false, keep = false, trust = false;
};

std::string_view word(engine::ReplayedOperation::State state) {
  switch (state) {
    case engine::ReplayedOperation::State::Same:
      return "same";
    case engine::ReplayedOperation::State::Different:
      return "different";
    case engine::ReplayedOperation::State::Skipped:
      return "skipped";
  }
  return "different";
}

Json to_json(const engine::ReplayedOperation& done, const engine::SecretMask& mask) {
  Json json = {{"seq", done.recorded->seq},
               {"op_id", done.recorded->op_id},
               {"operation", describe_request(mask.operation(*done.recorded))},
               {"state", word(done.state)},
               {"why", done.why},
               {"differences", Json::array()}};
  for (const auto& difference : done.differences)
    json["differences"].push_back({{"what", difference.what},
                                   {"recorded", json_bytes(mask.text(difference.left))},
                                   {"replayed", json_bytes(mask.text(difference.right))}});
  return json;
}

// Escaped for a terminal, line by line.
std::string lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

class Teller {
 public:
  Teller(Output& out, const engine::SecretMask& mask, bool quiet) : out_(out), mask_(mask), quiet_(quiet) {}

  void tell(const engine::ReplayedOperation& done) {
    using State = engine::ReplayedOperation::State;
    if (out_.json()) return out_.json_line(to_json(done, mask_));
    const std::string line =
        std::to_string(done.recorded->seq) + " " + describe_request(mask_.operation(*done.recorded));
    if (done.state == State::Skipped) return out_.line("~ " + line + ": not replayed: " + printable(done.why));
    if (done.state == State::Same) {
      if (!quiet_) out_.line("= " + line);
      return;
    }
    out_.line("! " + line);
    for (const engine::OperationDifference& difference : done.differences) {
      const std::string then = mask_.text(difference.left), now = mask_.text(difference.right);
      const layers::LineDiff diff = layers::diff_lines(then, now);
      out_.raw("--- " + difference.what + ", recorded\n+++ " + difference.what + ", replayed\n" + lines(diff.hunks));
    }
  }

 private:
  Output& out_;
  const engine::SecretMask& mask_;
  const bool quiet_;
};

void open_shell(engine::Engine& engine, const std::string& id, Invocation& call) {
  ExecSpec spec{.argv = {"/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"},
                .env = {}};
  apply({.interactive = true, .tty = std::nullopt, .detach = false, .timeout = std::nullopt}, call.out().json(), spec);
  const ForwardedSignals signals;
  const std::unique_ptr<engine::ExecStream> stream = engine.exec(id, spec);
  attend(*stream, {spec.tty, spec.open_stdin, call.out().format()});
}

void run(const Options& options, Invocation& call) {
  require_root("replay");
  engine::Engine& engine = call.wiring().local_engine();
  const engine::Trajectory trajectory = find_trajectory(options.what, engine);
  if (!trajectory.damage.empty()) call.progress().warn(trajectory.damage + "; what follows is not replayed");
  engine::Normaliser normaliser;
  if (!options.normalise.empty()) normaliser.add_file(read_file(options.normalise), options.normalise);
  const ReplaySandbox sandbox(engine, call.wiring().home(), trajectory, {options.what, options.trust, options.keep});
  sandbox.add_names(normaliser);

  const engine::SecretMask mask = secret_mask(trajectory);
  Teller teller(call.out(), mask, options.check);
  const engine::ReplayReport report = engine::replay(
      engine, sandbox.id(), trajectory, normaliser,
      {.until = options.until, .keep_going = options.keep_going, .tell = [&](const auto& done) { teller.tell(done); }});
  if (!call.out().json())
    call.out().line(std::to_string(report.same) + " the same, " + std::to_string(report.different) + " different, " +
                    std::to_string(report.skipped) + " not replayed, the last was operation " +
                    std::to_string(report.last));
  if (options.keep) std::cerr << "kept as sandbox " << sandbox.id() << '\n';
  if (options.shell) open_shell(engine, sandbox.id(), call);
  if (report.different) call.exit_with(kDifference);
}

}  // namespace

void add_replay(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("replay", "Do again what was done to a sandbox, and see where it differs");
  verb.reaches(Command::Reach::Local);
  verb.positional("TRAJECTORY", options->what, "A file or folder of one, or the sandbox it is of, which may be gone");
  verb.number("--until", options->until, "The last operation to do (default: all)");
  verb.flag("--check", options->check, "Tell only what differs");
  verb.option("--normalise,--normalize", "FILE", options->normalise,
              "Rules for what may differ: an expression, a tab and its replacement a line");
  verb.flag("--keep-going", options->keep_going, "Go on after the first operation that differs");
  verb.flag("--shell", options->shell, "Open a shell in the state after the last operation done");
  verb.flag("--trust", options->trust,
            "Give its sandbox the parts of this host that it had, also when it comes from elsewhere");
  verb.flag("--keep", options->keep, "Keep the sandbox, until dsec rm");
  verb.note("Exit code 3 when an operation differs. With -o json, one object for each operation.");
  verb.example("dsec replay web --check");
  verb.example("dsec replay rollout/log.jsonl --until 40 --shell");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
