#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/status_file.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  bool all = false, quiet = false;
  std::vector<std::string> labels;
};

std::string status(const engine::SandboxInfo& info) {
  std::string text(engine::to_string(info.state));
  if (info.main_result) return text + " (" + describe_end(*info.main_result) + ")";
  return info.reason.empty() ? text : text + " (" + printable(info.reason) + ")";
}

std::string command_of(const engine::SandboxInfo& info) {
  std::string text;
  for (const auto& word : info.command) text += (text.empty() ? "" : " ") + printable(word);
  return text;
}

void run(const Options& options, Invocation& call) {
  const std::vector<engine::SandboxInfo> found =
      call.wiring().engine().list({.all = options.all, .labels = parse_labels(options.labels)});
  if (options.quiet) {
    for (const auto& info : found) call.out().line(info.id);
  } else if (call.out().json()) {
    for (const auto& info : found) call.out().json_line(to_json(info));
  } else {
    Table table({"ID", "NAME", "ENVIRONMENT", "CREATED", "STATUS", "COMMAND"});
    for (const auto& info : found)
      table.row({info.id, info.spec.name, info.spec.environment, age(info.created), status(info), command_of(info)});
    call.out().table(table);
  }
}

}  // namespace

void add_ps(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("ps", "List sandboxes");
  verb.reaches(Command::Reach::Context);
  verb.flag("-a,--all", options->all, "Also those that have ended");
  verb.flag("-q,--quiet", options->quiet, "Ids only");
  verb.options("-l,--label", "KEY[=VALUE]", options->labels, "Only those with this label");
  verb.note("With -o json, one object a line. An orphaned sandbox has lost its keeper; dsec gc removes it.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
