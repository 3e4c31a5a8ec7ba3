#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/trajectory_report.h"
#include "layers/git/line_diff.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string what, out, against;
};

void run(const Options& options, Invocation& call) {
  if (options.out.empty()) throw usage_error("no file is given to write to").hint("give one with --out FILE");
  engine::Engine& engine = call.wiring().engine();
  const engine::Trajectory trajectory = find_trajectory(options.what, engine);
  std::optional<engine::Trajectory> against;
  if (!options.against.empty()) against = find_trajectory(options.against, engine);
  const engine::Trajectory* const other = against ? &*against : nullptr;
  engine::SecretMask mask = secret_mask(trajectory);
  if (against) mask.learn(*against);
  const engine::ReportWords words{
      describe_request, describe_outcome,
      [](const std::string& before, const std::string& after) { return layers::diff_lines(before, after).hunks; }};
  const std::filesystem::path target = std::filesystem::absolute(options.out);
  attempt("cannot write " + quote(options.out), [&] {
    TempFile file(target.parent_path(), 0600);
    std::string buffer;
    engine::write_report(trajectory, other, mask, words, [&](std::string_view part) {
      buffer += part;
      if (buffer.size() < 1u << 20) return;
      write_all(file.fd(), buffer);
      buffer.clear();
    });
    write_all(file.fd(), buffer);
    file.publish(target);
  });
  for (const engine::Trajectory* each : {&trajectory, other})
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
  verb.positional("TRAJECTORY", options->what, "The sandbox it is of, which may be gone, or a file or folder of one");
  verb.option("--out", "FILE", options->out, "Where to");
  verb.option("--against", "TRAJECTORY", options->against, "Show how this one differs");
  verb.note(
      "One file that needs nothing else: timeline, commands with their outputs, files that were copied, network "
      "requests, "
      "differences. Values of secrets are masked.");
  verb.example("dsec traj report web --out report.html --against web-2");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
