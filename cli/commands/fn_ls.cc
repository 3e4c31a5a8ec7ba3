#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/project_flags.h"
#include "core/base/units.h"
#include "layers/build/project.h"

namespace dsec::cli {
namespace {

std::string words(const std::vector<std::string>& argv) {
  if (argv.size() == 3 && argv[0] == "/bin/sh" && argv[1] == "-c") return argv[2];
  std::string line;
  for (const std::string& word : argv) line += (line.empty() ? "" : " ") + word;
  return line;
}

void run(const ProjectFlags& flags, Invocation& call) {
  const layers::Project project = load(flags);
  Table table({"NAME", "ENVIRONMENT", "TIME", "MEMORY", "POOL", "COMMAND"});
  for (const FunctionSpec& spec : project.functions) {
    if (call.out().json())
      call.out().json_line(dsec::to_json(spec));
    else
      table.row({spec.name, spec.environment, format_duration(spec.run_limits.time),
                 spec.limits.memory ? format_size(*spec.limits.memory) : "-", std::to_string(spec.pool),
                 printable(words(spec.command))});
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_fn_ls(Command& fn) {
  auto flags = std::make_shared<ProjectFlags>();
  Command& verb = fn.verb("ls", "List the functions of dsec.yaml");
  verb.reaches(Command::Reach::Local);
  verb.option("-p,--project", "FILE", flags->file, "The description (default: dsec.yaml)");
  verb.options("--arg", "NAME=VALUE", flags->args, "Value of ${NAME} in it");
  verb.note("With -o json, one object a line.");
  verb.runs([flags](Invocation& call) { run(*flags, call); });
}

}  // namespace dsec::cli
