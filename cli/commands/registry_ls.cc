#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "registry/registries.h"

namespace dsec::cli {
namespace {

void run(Invocation& call) {
  Table table({"NAME", "KIND", "URL", "", "STATE"});
  for (const auto& status : registry::list_registries(Config::load())) {
    if (call.out().json())
      call.out().json_line({{"name", status.entry.name},
                            {"url", status.entry.url},
                            {"kind", status.kind},
                            {"in_place", status.entry.in_place},
                            {"allow_any_fs", status.entry.allow_any_fs},
                            {"problem", status.problem}});
    else
      table.row({status.entry.name, status.kind, printable(status.entry.url),
                 status.entry.in_place ? "in place, unverified" : "",
                 status.problem.empty() ? "usable" : printable(status.problem)});
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_registry_ls(Command& registry) {
  Command& verb = registry.verb("ls", "List the registries that are configured");
  verb.note("With -o json, one object a line.");
  verb.runs(run);
}

}  // namespace dsec::cli
