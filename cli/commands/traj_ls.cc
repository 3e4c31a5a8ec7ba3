#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

void run(bool quiet, Invocation& call) {
  std::vector<std::string> problems;
  Table table({"ID", "ENVIRONMENT", "CREATED", "OPERATIONS", "SIZE", "SANDBOX"});
  Output& out = call.out();
  for (const engine::TrajectoryInfo& info : call.wiring().engine().trajectories(problems)) {
    if (quiet) {
      out.line(info.id);
    } else if (out.json()) {
      Json layers = Json::array();
      for (const Digest& layer : info.layers) layers.push_back(layer.str());
      out.json_line({{"id", info.id},
                     {"environment", info.environment},
                     {"source", info.source},
                     {"created", iso_time(info.created)},
                     {"last", iso_time(info.last)},
                     {"operations", info.operations},
                     {"bytes", info.bytes},
                     {"live", info.live},
                     {"layers", layers}});
    } else {
      table.row({info.id, printable(info.environment), age(info.created), std::to_string(info.operations),
                 format_size(info.bytes),
                 info.live             ? "there"
                 : info.source.empty() ? "removed"
                                       : "imported"});
    }
  }
  if (!quiet && !out.json()) out.table(table);
  for (const std::string& problem : problems) call.progress().warn(problem);
  if (!problems.empty()) call.exit_with(1);
}

}  // namespace

void add_traj_ls(Command& traj) {
  auto quiet = std::make_shared<bool>(false);
  Command& verb = traj.verb("ls", "List trajectories");
  verb.reaches(Command::Reach::Context);
  verb.flag("-q,--quiet", *quiet, "Ids only");
  verb.note("With -o json, one object a line.");
  verb.runs([quiet](Invocation& call) { run(*quiet, call); });
}

}  // namespace dsec::cli
