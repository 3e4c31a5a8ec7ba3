#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/status_file.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

// A text of many lines would make the table unreadable.
constexpr std::size_t kShown = 60;

std::string shown(const std::vector<std::string>& argv) {
  std::string text;
  for (const auto& word : argv) text += (text.empty() ? "" : " ") + printable(word.substr(0, kShown));
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

void run(const std::string& sandbox, bool all, Invocation& call) {
  Table table({"EXEC ID", "SESSION", "STATUS", "COMMAND"});
  for (const auto& info : call.wiring().engine().commands(sandbox)) {
    if (!info.running && !all) continue;
    if (call.out().json())
      call.out().json_line(to_json(info));
    else
      table.row({info.exec_id, info.session.empty() ? "-" : info.session,
                 info.result ? describe_end(*info.result) : "running", shown(info.argv)});
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_commands(Command& root) {
  struct Options {
    std::string sandbox;
    bool all = false;
  };
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("commands", "List the commands that run in a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.flag("-a,--all", options->all, "Also those that have ended");
  verb.note("With -o json, one object a line. dsec attach and dsec logs --exec show their output.");
  verb.runs([options](Invocation& call) { run(options->sandbox, options->all, call); });
}

}  // namespace dsec::cli
