#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/selection.h"
#include "core/engine/engine.h"

namespace dsec::cli {
namespace {

struct Options {
  Selection selection;
  bool force = false;
};

}  // namespace

void add_rm(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("rm", "Remove sandboxes with all that they wrote");
  verb.reaches(Command::Reach::Context);
  declare(verb, options->selection);
  verb.flag("-f,--force", options->force, "Stop those that run");
  verb.runs([options](Invocation& call) {
    for_each_selected(call, options->selection,
                      [&](engine::Engine& engine, const std::string& name) { engine.remove(name, options->force); });
  });
}

}  // namespace dsec::cli
