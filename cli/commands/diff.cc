#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/diff_stat.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, out;
  bool patch = false, stat = false, tar = false;
};

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

Json change_json(const engine::Change& change) {
  Json json = bytes_to_json(change.path);
  if (json.contains("data")) json = {{"path", json["data"]}};
  json["kind"] = words(change.kind).second;
  return json;
}

void list(const Options& options, Invocation& call) {
  for (const engine::Change& change : call.wiring().engine().diff(options.sandbox)) {
    if (call.out().json())
      call.out().json_line(change_json(change));
    else
      call.out().line(std::string(words(change.kind).first) + " " + printable(change.path));
  }
}

void count_lines(const Options& options, Invocation& call) {
  const std::vector<engine::FileChange> changes = call.wiring().engine().diff_stat(options.sandbox);
  if (!call.out().json()) {
    if (!changes.empty()) call.out().raw(diff_stat(changes));
    return;
  }
  for (const engine::FileChange& change : changes) {
    Json json = change_json(change.change);
    json.update({{"binary", change.binary},
                 {"added_lines", change.added_lines},
                 {"deleted_lines", change.deleted_lines},
                 {"bytes_before", change.bytes_before},
                 {"bytes_after", change.bytes_after}});
    call.out().json_line(json);
  }
}

void content(const Options& options, Invocation& call) {
  const engine::DiffForm form = options.patch ? engine::DiffForm::Patch : engine::DiffForm::Tar;
  engine::Engine& engine = call.wiring().engine();
  if (options.out.empty() || options.out == "-") {
    if (call.out().json())
      throw usage_error("a patch or an archive on standard output is no JSON").hint("give a file with --out");
    if (options.tar && ::isatty(STDOUT_FILENO) == 1)
      throw usage_error("an archive is not written to a terminal").hint("give a file with --out, or use a pipe");
    return engine.diff_content(options.sandbox, form, STDOUT_FILENO);
  }
  const std::filesystem::path target = std::filesystem::absolute(options.out);
  // Under its name it is complete or not there at all.
  TempFile file(target.parent_path(), 0644);
  engine.diff_content(options.sandbox, form, file.fd());
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) throw system_error("stat " + quote(target.native()));
  file.publish(target);
  if (call.out().json()) call.out().json({{"file", target.native()}, {"bytes", info.st_size}});
}

void run(const Options& options, Invocation& call) {
  if (int{options.patch} + int{options.stat} + int{options.tar} > 1)
    throw usage_error("--patch, --stat and --tar are forms of which one can be asked for");
  if (!options.out.empty() && !options.patch && !options.tar) throw usage_error("--out goes with --patch or --tar");
  if (options.patch || options.tar) return content(options, call);
  if (options.stat) return count_lines(options, call);
  list(options, call);
}

}  // namespace

void add_diff(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("diff", "Show what a sandbox has changed in its files");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.flag("--patch", options->patch, "A unified patch of the text files, for git apply and patch");
  verb.flag("--stat", options->stat, "How many lines of each file were changed");
  verb.flag("--tar", options->tar, "An archive of what was changed, in the form of an OCI layer");
  verb.option("--out", "FILE", options->out, "Where --patch and --tar write to (default: standard output)");
  verb.note(
      "A: added, C: changed, D: deleted. With -o json, one object a line; a path that is no UTF-8 comes as "
      "base64.");
  verb.example("dsec diff dev --patch | git -C toolz apply -p2 -");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
