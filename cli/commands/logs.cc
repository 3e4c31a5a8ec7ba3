#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/wiring.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {
using Kind = engine::ExecEvent::Kind;

struct Options {
  std::string sandbox, exec_id;
  bool follow = false, timestamps = false;
  std::optional<std::uint64_t> tail;
};

// Puts the time before each line, though a record may hold several lines or part of one.
class Stamps {
 public:
  std::string mark(Kind kind, std::chrono::system_clock::time_point time, std::string_view data) {
    bool& at_start = kind == Kind::Stderr ? err_at_start_ : out_at_start_;
    std::string text;
    for (const char c : data) {
      if (at_start) text += iso_time(time) + " ";
      text += c;
      at_start = c == '\n';
    }
    return text;
  }

 private:
  bool out_at_start_ = true, err_at_start_ = true;
};

void run(const Options& options, Invocation& call) {
  Output& out = call.out();
  Stamps stamps;
  const auto sink = [&](Kind kind, std::chrono::system_clock::time_point time, std::string_view data) {
    if (out.json()) {
      Json json = bytes_to_json(data);
      json["stream"] = kind == Kind::Stderr ? "stderr" : "stdout";
      json["time"] = iso_time(time);
      return out.json_line(json);
    }
    const std::string text = options.timestamps ? stamps.mark(kind, time, data) : std::string(data);
    if (kind == Kind::Stderr) return write_all(STDERR_FILENO, text);
    out.raw(text);
  };
  call.wiring().engine().logs(options.sandbox,
                              {.follow = options.follow, .tail = options.tail, .exec_id = options.exec_id}, sink);
}

}  // namespace

void add_logs(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("logs", "Show the output of a sandbox's command");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.flag("-f,--follow", options->follow, "Go on until the command ends");
  verb.number("-n,--tail", options->tail, "The last lines only");
  verb.flag("-t,--timestamps", options->timestamps, "Put the time before each line");
  verb.option("--exec", "EXEC_ID", options->exec_id, "Of this command (default: the main command)");
  verb.note(
      "Standard output and standard error come out separately, as the command wrote them. With -o json, one "
      "object a line.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
