#include "cli/app.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "cli/command.h"
#include "cli/invocation.h"
#include "cli/report.h"
#include "cli/root.h"
#include "cli/status_file.h"
#include "cli/store_limit.h"
#include "cli/wiring.h"
#include "core/base/config.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

// The deepest command that the first words name; `used` of them.
Command& locate(Command& root, const std::vector<std::string>& args, std::size_t& used) {
  Command* command = &root;
  for (used = 0; used < args.size() && !command->children().empty(); ++used) {
    Command* child = command->child(args[used]);
    if (!child) break;
    command = child;
  }
  return *command;
}

[[noreturn]] void refuse_word(const Command& group, const std::string& word) {
  if (word.rfind('-', 0) == 0)
    throw usage_error("unknown option " + quote(word) + " of " + quote(group.path())).hint(group.path() + " --help");
  Error error = usage_error(quote(group.path()) + " has no command " + quote(word));
  std::vector<std::string> known;
  for (const auto& child : group.children()) known.push_back(child->name());
  for (const auto& near : nearest_names(word, known)) error.hint(group.path() + " " + near);
  throw std::move(error).hint(group.path() + " --help");
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

// What the words say of -o, also when something else in them is wrong.
Format format_of(const std::vector<std::string>& args) {
  Format format = Format::Text;
  for (std::size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    const bool pair = (args[i] == "-o" || args[i] == "--output") && i + 1 < args.size();
    const std::string value = pair ? args[i + 1] : args[i];
    if (value == "-ojson" || value == "--output=json" || (pair && value == "json")) format = Format::Json;
  }
  return format;
}

// What stands before the command: "--context NAME". Returns how many words that is.
std::size_t take_context(const std::vector<std::string>& args, std::optional<std::string>& context) {
  constexpr std::string_view kOption = "--context";
  std::size_t used = 0;
  while (used < args.size() && args[used].starts_with(kOption)) {
    const std::string& word = args[used];
    if (word.size() > kOption.size() && word[kOption.size()] == '=') {
      context = word.substr(kOption.size() + 1);
      ++used;
    } else if (word == kOption && used + 1 < args.size()) {
      context = args[used + 1];
      used += 2;
    } else {
      break;
    }
    if (context->empty()) throw usage_error("--context names no context").hint("dsec context ls");
  }
  return used;
}

// Whose sandboxes the command works on: as the command line, the environment or the configuration says.
void choose_context(const Command& command, const std::optional<std::string>& asked, Wiring& wiring) {
  using Reach = Command::Reach;
  if (command.reach() == Reach::Context) {
    const char* const set = std::getenv("DSEC_CONTEXT");
    return wiring.use_context(asked ? *asked : set && *set ? set : Config::load().default_context);
  }
  if (!asked || *asked == kLocalContext) {
    if (command.reach() == Reach::Host || asked) return;
    const char* const set = std::getenv("DSEC_CONTEXT");
    const std::string name = set && *set ? set : Config::load().default_context;
    if (name.empty() || name == kLocalContext) return;
    throw usage_error(quote(command.path()) + " works on sandboxes of this host alone, and the context is " +
                      quote(name))
        .hint("dsec --context local …");
  }
  throw usage_error(quote(command.path()) + " works on this host alone, and --context names another")
      .hint("leave --context out");
}

int run_command(Command& root, const std::vector<std::string>& args, const std::optional<std::string>& context,
                Wiring& wiring, bool& status_passed_on) {
  std::size_t used = 0;
  Command& command = locate(root, args, used);
  status_passed_on = command.status_passed_on();
  const std::vector<std::string> rest(args.begin() + static_cast<std::ptrdiff_t>(used), args.end());
  if (!command.action()) {
    if (!rest.empty() && asks_for_help(rest.front())) {
      Output(Format::Text).raw(command.help());
      return kOk;
    }
    if (!rest.empty()) refuse_word(command, rest.front());
    std::cerr << command.help();
    return kMisused;
  }
  if (command.parse(rest)) {
    Output(Format::Text).raw(command.help());
    return kOk;
  }
  choose_context(command, context, wiring);
  Invocation call(wiring, command.json() ? Format::Json : Format::Text);
  try {
    command.action()(call);
  } catch (const Error&) {
    if (wiring.store_has_grown()) keep_store_limit(wiring, call.progress());
    throw;
  }
  if (wiring.store_has_grown()) keep_store_limit(wiring, call.progress());
  return call.exit_code();
}

}  // namespace

int run(const std::vector<std::string>& args, Wiring& wiring) {
  bool status_passed_on = false;
  const auto fail = [&](Error error) {
    if (const std::string note = sudo_store_note(); !note.empty() && wiring.home_used()) error.hint(note);
    report(error, format_of(args), std::cerr);
    const int code = exit_code(error.kind(), status_passed_on);
    if (status_passed_on) write_status_of_failure(args, code, error);
    return code;
  };
  try {
    Command root(nullptr, "dsec", "Build, publish and run execution environments made of layers");
    root.note("dsec --context NAME COMMAND works on sandboxes of another host (dsec-context(1)).");
    std::optional<std::string> context;
    const auto first = static_cast<std::ptrdiff_t>(take_context(args, context));
    std::vector<std::string> words(args.begin() + first, args.end());
    if (words.size() == 1 && (words[0] == "--version" || words[0] == "-V")) words = {"version"};
    declare_commands(root, words.empty() ? "" : words.front());
    return run_command(root, words, context, wiring, status_passed_on);
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(Error(ErrorKind::Internal, std::string("dsec made a mistake: ") + error.what())
                    .hint("report it with the command line and the output of dsec doctor"));
  }
}

}  // namespace dsec::cli
