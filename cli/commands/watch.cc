#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {
using engine::FileEvent;

struct Options {
  std::string sandbox, path;
  bool recursive = false;
};

void put_path(Json& json, const std::string& name, const std::string& path) {
  const Json bytes = bytes_to_json(path);
  if (bytes.contains("data"))
    json[name] = bytes["data"];
  else
    json[name + "_base64"] = bytes["base64"];
}

void tell(Output& out, const FileEvent& event) {
  if (!out.json()) {
    std::string line(engine::to_string(event.kind));
    line.resize(11, ' ');
    if (!event.from.empty()) line += printable(event.from) + " -> ";
    return out.line(line + printable(event.path) + (event.directory ? "/" : ""));
  }
  Json json = {{"type", engine::to_string(event.kind)}, {"directory", event.directory}};
  put_path(json, "path", event.path);
  if (!event.from.empty()) put_path(json, "from", event.from);
  out.json_line(json);
}

void run(const Options& options, Invocation& call) {
  const auto watch = call.wiring().engine().watch(options.sandbox, options.path, options.recursive);
  // Whoever makes changes must know when they begin to count.
  if (call.out().json())
    call.out().json_line({{"type", "watching"}, {"path", options.path}});
  else
    call.out().line("watching   " + printable(options.path));
  while (const std::optional<FileEvent> event = watch->next()) {
    tell(call.out(), *event);
    if (event->kind == FileEvent::Kind::Ended) return;
  }
}

}  // namespace

void add_watch(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("watch", "Show what happens to the files of a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.positional("PATH", options->path, "File or directory inside");
  verb.flag("-r,--recursive", options->recursive, "Also what lies below, and what will");
  verb.note("Goes on until it is interrupted, PATH is gone or the sandbox ends. With -o json, one object a line.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
