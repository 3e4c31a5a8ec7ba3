#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/traj_text.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "core/engine/atif.h"
#include "core/engine/trajectory_export.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string what, out, format = "dsec";
};

void run(const Options& options, Invocation& call) {
  if (options.out.empty()) throw usage_error("no file is given to write to").hint("give one with --out FILE");
  const engine::Trajectory trajectory = find_trajectory(options.what, call.wiring().engine());
  const engine::SecretMask mask = secret_mask(trajectory);
  const std::filesystem::path target = std::filesystem::absolute(options.out);
  engine::Exported done;
  std::vector<std::string> left_out;
  attempt("cannot write " + quote(options.out), [&] {
    // Under its name it is complete or not there at all.
    TempFile file(target.parent_path(), 0600);
    if (options.format == "atif") {
      const std::string text = engine::export_atif(trajectory, mask, left_out).dump(1) + "\n";
      write_all(file.fd(), text);
      done = {.bytes = text.size(), .operations = trajectory.operations.size()};
    } else {
      done = engine::export_trajectory(trajectory, mask, file.fd());
    }
    file.publish(target);
  });
  for (const std::string& what : left_out) call.progress().warn("left out: " + what);
  if (!trajectory.damage.empty()) {
    call.progress().warn(trajectory.damage + "; what follows is not exported");
    call.exit_with(1);
  }
  call.end_progress();
  if (call.out().json())
    call.out().json({{"file", target.native()},
                     {"bytes", done.bytes},
                     {"operations", done.operations},
                     {"files", done.files},
                     {"masked_in_files", done.masked},
                     {"left_out", left_out}});
}

}  // namespace

void add_traj_export(Command& traj) {
  auto options = std::make_shared<Options>();
  Command& verb = traj.verb("export", "Write a trajectory with all its files into one file, with secrets masked");
  verb.reaches(Command::Reach::Context);
  verb.positional("TRAJECTORY", options->what, "The sandbox it is of, which may be gone, or a file or folder of one");
  verb.option("--out", "FILE", options->out, "Where to");
  verb.choice("--format", options->format, {"dsec", "atif"}, "dsec: all of it; atif: for other tools");
  verb.note(
      "dsec traj import takes it on another host, and show, diff, replay and report take the file as it is. In place "
      "of "
      "each secret stand as many X.");
  verb.example("dsec traj export web --out web.jsonl");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
