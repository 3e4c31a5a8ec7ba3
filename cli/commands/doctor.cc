#include "runners/doctor.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/root.h"
#include "cli/wiring.h"
#include "core/base/error.h"

namespace dsec::cli {
namespace {

struct Options {
  std::vector<std::string> groups;
  bool all = false;
};

const char* word(runners::CheckStatus status) {
  switch (status) {
    case runners::CheckStatus::Ok:
      return "ok";
    case runners::CheckStatus::Warn:
      return "warn";
    case runners::CheckStatus::Fail:
      return "fail";
  }
  return "fail";
}

// Only what was asked for; an unknown group is named with those there are.
void choose(std::vector<runners::HostCheck>& checks, const std::vector<std::string>& groups) {
  std::vector<std::string> known;
  for (const auto& check : checks)
    if (std::find(known.begin(), known.end(), check.group) == known.end()) known.push_back(check.group);
  for (const auto& group : groups) {
    if (std::find(known.begin(), known.end(), group) != known.end()) continue;
    Error error = usage_error("dsec doctor has no group of checks " + quote(group));
    for (const auto& name : known) error.hint("dsec doctor " + name);
    throw error;
  }
  if (groups.empty()) return;
  std::erase_if(checks, [&](const runners::HostCheck& check) {
    return std::find(groups.begin(), groups.end(), check.group) == groups.end();
  });
}

Json to_json(const runners::HostReport& report) {
  Json checks = Json::array(), abilities = Json::array();
  for (const auto& check : report.checks)
    checks.push_back({{"group", check.group},
                      {"name", check.name},
                      {"status", word(check.status)},
                      {"found", check.found},
                      {"mend", check.mend}});
  for (const auto& ability : report.abilities)
    abilities.push_back({{"what", ability.what}, {"works", ability.works}, {"why", ability.why}});
  return {{"place", report.place}, {"checks", checks}, {"abilities", abilities}};
}

void print(Output& out, const runners::HostReport& report, bool all) {
  out.line("Here: " + printable(report.place));
  for (const auto& check : report.checks) {
    if (!all && check.status == runners::CheckStatus::Ok) continue;
    out.line(std::string(word(check.status)) + " " + check.group + ": " + check.name + ": " + printable(check.found));
    if (!check.mend.empty()) out.line("  try: " + printable(check.mend));
  }
  for (const auto& ability : report.abilities)
    out.line(std::string(ability.works ? "can " : "cannot ") + ability.what +
             (ability.why.empty() ? "" : ": " + printable(ability.why)));
  if (const std::string note = sudo_store_note(); !note.empty()) out.line("note: " + note);
}

void run(const Options& options, Invocation& call) {
  runners::HostReport report = call.wiring().examine_host();
  choose(report.checks, options.groups);
  if (call.out().json())
    call.out().json(to_json(report));
  else
    print(call.out(), report, options.all || !options.groups.empty());
  for (const auto& check : report.checks)
    if (check.status == runners::CheckStatus::Fail) call.exit_with(1);
}

}  // namespace

void add_doctor(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("doctor", "Check this host, and say how to mend what does not work");
  verb.positionals("GROUP", options->groups, "kernel, permissions, cgroups, storage, tools or limits (default: all)",
                   0);
  verb.flag("-a,--all", options->all, "Show what is all right, too");
  verb.note("Changes nothing. Exit code 1 when something that dsec is for does not work here.");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
