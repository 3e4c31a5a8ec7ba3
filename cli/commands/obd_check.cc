#include "layers/overlaybd/check.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/obd_flags.h"
#include "cli/report.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

namespace obd = layers::overlaybd;

void run(const std::vector<std::string>& files, Invocation& call) {
  const obd::CheckResult result = obd::check(to_paths(files), call.progress());
  call.end_progress();
  if (call.out().json()) {
    Json problems = Json::array();
    for (const auto& problem : result.problems)
      problems.push_back({{"file", printable(problem.file)}, {"what", printable(problem.what)}});
    call.out().json({{"layers", result.layers},
                     {"bytes", result.bytes},
                     {"without_checksums", result.unverified},
                     {"problems", problems}});
  } else {
    for (const auto& problem : result.problems)
      call.out().line(printable(problem.file) + ": " + printable(problem.what));
    const std::size_t count = result.problems.size();
    call.out().line(
        std::to_string(result.layers) + (result.layers == 1 ? " layer, " : " layers, ") + format_size(result.bytes) +
        (result.unverified > 0 ? " (" + std::to_string(result.unverified) + " without checksums)" : "") + ": " +
        (count == 0 ? "all right" : std::to_string(count) + (count == 1 ? " problem" : " problems")));
  }
  if (!result.problems.empty()) call.exit_with(kDifference);
}

}  // namespace

void add_obd_check(Command& group) {
  auto files = std::make_shared<std::vector<std::string>>();
  Command& verb = group.verb("check", "Verify all that layers hold, and that they belong together");
  verb.positionals("FILE", *files, "Layers, the lowest first; of a writable one its data and its index file");
  verb.note("Exit code 3 when something is wrong. Only compressed layers have checksums.");
  verb.runs([files](Invocation& call) { run(*files, call); });
}

}  // namespace dsec::cli
