#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> sandboxes;
  bool all = false;
};

void run(const Options& options, Invocation& call) {
  if (options.all == !options.sandboxes.empty()) throw usage_error("name trajectories, or give --all");
  engine::Engine& engine = call.wiring().engine();
  std::vector<std::string> ids = options.sandboxes, problems;
  if (options.all)
    for (const engine::TrajectoryInfo& info : engine.trajectories(problems))
      if (!info.live) ids.push_back(info.id);
  for (const std::string& id : ids) {
    engine.remove_trajectory(id);
    if (call.out().json())
      call.out().json_line({{"removed", id}});
    else
      call.out().line(id);
  }
}

}  // namespace

void add_traj_rm(Command& traj) {
  auto options = std::make_shared<Options>();
  Command& verb = traj.verb("rm", "Remove trajectories of sandboxes that are gone");
  verb.reaches(Command::Reach::Context);
  verb.positionals("SANDBOX", options->sandboxes, "Id, unique beginning of an id, or the name it had", 0);
  verb.flag("-a,--all", options->all, "All whose sandbox is gone");
  verb.note("dsec gc removes those that exceed the limits of the configuration.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
