#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/remote/address.h"
#include "core/remote/token.h"

namespace dsec::cli {
namespace {

bool is_known(const Config& config, const std::string& name) {
  return name == kLocalContext || std::any_of(config.contexts.begin(), config.contexts.end(),
                                              [&](const ContextEntry& entry) { return entry.name == name; });
}

Error unknown(const Config& config, const std::string& name) {
  Error error = usage_error("there is no context " + quote(name));
  std::vector<std::string> known = {kLocalContext};
  for (const ContextEntry& entry : config.contexts) known.push_back(entry.name);
  for (const std::string& near : nearest_names(name, known)) error.hint(near);
  return std::move(error).hint("dsec context ls");
}

void add(ContextEntry entry) {
  // What cannot be used is refused now, and not with the first command.
  remote::Address::parse(entry.url);
  if (!entry.token_file.empty()) {
    entry.token_file = std::filesystem::absolute(entry.token_file).lexically_normal();
    remote::read_token(entry.token_file);
  }
  add_context_entry(entry);
}

void list(Invocation& call) {
  const Config config = Config::load();
  const std::string chosen = config.default_context.empty() ? kLocalContext : config.default_context;
  std::vector<ContextEntry> all = {{.name = kLocalContext, .url = "", .token_file = ""}};
  all.insert(all.end(), config.contexts.begin(), config.contexts.end());
  Table table({"NAME", "DEFAULT", "URL", "TOKEN"});
  for (const ContextEntry& entry : all) {
    if (call.out().json())
      call.out().json_line({{"name", entry.name},
                            {"default", entry.name == chosen},
                            {"url", entry.url},
                            {"token_file", entry.token_file}});
    else
      table.row({entry.name, entry.name == chosen ? "yes" : "", printable(entry.url), printable(entry.token_file)});
  }
  if (!call.out().json()) call.out().table(table);
}

}  // namespace

void add_context_add(Command& context) {
  auto entry = std::make_shared<ContextEntry>();
  Command& verb = context.verb("add", "Give an edge a name");
  verb.positional("NAME", entry->name, "Name for --context and DSEC_CONTEXT");
  verb.positional("URL", entry->url, "unix:/PATH, or http://127.0.0.1:PORT");
  verb.option("--token-file", "FILE", entry->token_file, "What to say to it; read at each command");
  verb.example("dsec context add lab unix:/run/dsec/edge.sock && dsec --context lab ps");
  verb.runs([entry](Invocation&) { add(*entry); });
}

void add_context_ls(Command& context) {
  Command& verb = context.verb("ls", "List contexts");
  verb.note("With -o json, one object a line.");
  verb.runs(list);
}

void add_context_rm(Command& context) {
  auto name = std::make_shared<std::string>();
  Command& verb = context.verb("rm", "Forget the name of an edge; its sandboxes go on");
  verb.positional("NAME", *name, "Name of the context");
  verb.runs([name](Invocation&) {
    if (!remove_context_entry(*name)) throw unknown(Config::load(), *name);
  });
}

void add_context_use(Command& context) {
  auto name = std::make_shared<std::string>();
  Command& verb = context.verb("use", "Work on the sandboxes of a context from now on");
  verb.positional("NAME", *name, "Name of the context; local: this host");
  verb.note("--context and DSEC_CONTEXT say otherwise for one command.");
  verb.runs([name](Invocation&) {
    const Config config = Config::load();
    if (!is_known(config, *name)) throw unknown(config, *name);
    set_default_context(*name);
  });
}

}  // namespace dsec::cli
