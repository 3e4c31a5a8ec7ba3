#include "cli/selection.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/finish.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

std::vector<std::string> names_of(engine::Engine& engine, const Selection& selection) {
  if (!selection.names.empty() && !selection.labels.empty())
    throw usage_error("sandboxes are chosen by name or by --label, not by both");
  if (selection.labels.empty()) return selection.names;
  std::vector<std::string> names;
  for (const auto& info : engine.list({.all = true, .labels = parse_labels(selection.labels)}))
    names.push_back(info.id);
  return names;
}

}  // namespace

void declare(Command& command, Selection& selection) {
  command.positionals("SANDBOX", selection.names, "Id, unique beginning of an id, or name", 0);
  command.options("-l,--label", "KEY[=VALUE]", selection.labels, "All with this label, instead of names");
}

void for_each_selected(Invocation& call, const Selection& selection,
                       const std::function<void(engine::Engine&, const std::string& name)>& action) {
  if (selection.names.empty() && selection.labels.empty())
    throw usage_error("no sandbox is given").hint("name one, or give a --label");
  engine::Engine& engine = call.wiring().engine();
  std::optional<Error> first;
  for (const auto& name : names_of(engine, selection)) {
    try {
      action(engine, name);
    } catch (const Error& error) {
      // The first is reported by main.
      if (first) report(error, call.out().format(), std::cerr);
      if (!first) first = error;
      continue;
    }
    if (call.out().json())
      call.out().json_line({{"sandbox", name}});
    else
      call.out().line(name);
  }
  if (first) throw *first;
}

}  // namespace dsec::cli
