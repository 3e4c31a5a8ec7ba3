#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/wiring.h"

namespace dsec::cli {
namespace {

std::pair<const char*, const char*> words(engine::Change::Kind kind) {
  switch (kind) {
    case engine::Change::Kind::Added:
      return {"A", "added"};
    case engine::Change::Kind::Modified:
      return {"C", "modified"};
    case engine::Change::Kind::Deleted:
      return {"D", "deleted"};
  }
  return {"?", "unknown"};
}

}  // namespace

void add_diff(Command& root) {
  auto name = std::make_shared<std::string>();
  Command& verb = root.verb("diff", "Show what a sandbox has changed in its files");
  verb.positional("SANDBOX", *name, "Id, unique beginning of an id, or name");
  verb.note(
      "A: added, C: changed, D: deleted. With -o json, one object a line; a path that is no UTF-8 comes as "
      "base64.");
  verb.runs([name](Invocation& call) {
    for (const engine::Change& change : call.wiring().engine().diff(*name)) {
      const auto [letter, word] = words(change.kind);
      if (call.out().json()) {
        Json json = bytes_to_json(change.path);
        if (json.contains("data")) json = {{"path", json["data"]}};
        json["kind"] = word;
        call.out().json_line(json);
      } else {
        call.out().line(std::string(letter) + " " + printable(change.path));
      }
    }
  });
}

}  // namespace dsec::cli
