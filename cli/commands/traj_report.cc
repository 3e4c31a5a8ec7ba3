#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/replay_sandbox.h"
#include "cli/root.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/replay.h"
#include "core/engine/trajectory_report.h"
#include "core/engine/written_files.h"
#include "layers/git/line_diff.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string what, out, against;
  bool replay = false, trust = false;
};

constexpr std::string_view kWriting[] = {"exec", "session", "session-open", "session-close", "write", "http"};

// After each operation, since nothing of it was recorded: that would cost every rollout what a few reports need.
std::map<std::uint64_t, engine::ReplayedFiles> replay_files(const engine::Trajectory& trajectory,
                                                            const Options& options, Invocation& call) {
  require_root("traj report --replay");
  engine::LocalEngine& engine = call.wiring().local_engine();
  engine::Normaliser normaliser;
  const ReplaySandbox sandbox(engine, call.wiring().home(), trajectory, {options.what, options.trust, false});
  sandbox.add_names(normaliser);
  engine::WrittenFiles files(engine, sandbox.id());
  std::map<std::uint64_t, engine::ReplayedFiles> found;
  const std::string step = "replay " + trajectory.header.id;
  call.progress().begin(step);
  const auto look = [&](const engine::ReplayedOperation& done) {
    call.progress().advance(step, done.recorded->seq, trajectory.operations.size());
    if (done.state == engine::ReplayedOperation::State::Skipped) return;
    if (std::find(std::begin(kWriting), std::end(kWriting), done.recorded->kind) == std::end(kWriting)) return;
    found[done.recorded->seq] = {files.look(), done.state == engine::ReplayedOperation::State::Same};
  };
  const engine::ReplayReport report =
      engine::replay(engine, sandbox.id(), trajectory, normaliser, {.until = {}, .keep_going = true, .tell = look});
  call.progress().end(step, std::to_string(report.different) + " operations came out otherwise");
  return found;
}

void run(const Options& options, Invocation& call) {
  if (options.out.empty()) throw usage_error("no file is given to write to").hint("give one with --out FILE");
  engine::Engine& engine = call.wiring().local_engine();
  const engine::Trajectory trajectory = find_trajectory(options.what, engine);
  std::optional<engine::Trajectory> against;
  if (!options.against.empty()) against = find_trajectory(options.against, engine);
  engine::ReportContent content{.trajectory = trajectory, .against = against ? &*against : nullptr};
  if (options.replay) content.files = replay_files(trajectory, options, call);
  engine::SecretMask mask = secret_mask(trajectory);
  if (against) mask.learn(*against);
  const engine::ReportWords words{
      describe_request, describe_outcome,
      [](const std::string& before, const std::string& after) { return layers::diff_lines(before, after).hunks; }};
  const std::filesystem::path target = std::filesystem::absolute(options.out);
  attempt("cannot write " + quote(options.out), [&] {
    TempFile file(target.parent_path(), 0600);
    std::string buffer;
    engine::write_report(content, mask, words, [&](std::string_view part) {
      buffer += part;
      if (buffer.size() < 1u << 20) return;
      write_all(file.fd(), buffer);
      buffer.clear();
    });
    write_all(file.fd(), buffer);
    file.publish(target);
  });
  for (const engine::Trajectory* each : {&trajectory, content.against})
    if (each && !each->damage.empty()) {
      call.progress().warn(each->damage + "; what follows is not shown");
      call.exit_with(1);
    }
  if (call.out().json()) call.out().json({{"file", target.native()}, {"operations", trajectory.operations.size()}});
}

}  // namespace

void add_traj_report(Command& traj) {
  auto options = std::make_shared<Options>();
  Command& verb = traj.verb("report", "Write a page that shows what was done, for a browser");
  verb.reaches(Command::Reach::Local);
  verb.positional("TRAJECTORY", options->what, "The sandbox it is of, which may be gone, or a file or folder of one");
  verb.option("--out", "FILE", options->out, "Where to");
  verb.option("--against", "TRAJECTORY", options->against, "Show how this one differs");
  verb.flag("--replay", options->replay, "Replay it in a fresh sandbox, and show which files each operation writes");
  verb.flag("--trust", options->trust, "As for dsec replay");
  verb.note(
      "One file that needs nothing else: timeline, commands with their outputs, files that were copied, network "
      "requests, differences. Values of secrets are masked.");
  verb.example("dsec traj report web --out report.html --replay");
  verb.example("dsec traj report web --out report.html --against web-2");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
