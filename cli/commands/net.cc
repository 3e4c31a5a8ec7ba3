#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/engine/engine.h"
#include "core/engine/network_log.h"

namespace dsec::cli {
namespace {

constexpr std::chrono::milliseconds kLookAgain{200};

void print_policy(Output& out, const NetworkPolicy& policy, const std::string& indent) {
  for (const NetworkRule& rule : policy.deny) out.line(indent + "deny   " + rule.str());
  for (const NetworkRule& rule : policy.allow) out.line(indent + "allow  " + rule.str());
  for (const HeaderSecret& secret : policy.inject)
    out.line(indent + "inject " + secret.host + ": " + secret.header + " from " + secret.secret);
  if (policy.allow.empty() && policy.inject.empty()) out.line(indent + "nothing is allowed");
  if (policy.strict) out.line(indent + "strict");
  out.line(indent + "at most " + std::to_string(policy.connections) + " connections" +
           (policy.bytes ? ", " + format_size(*policy.bytes) : ""));
}

void show(const std::string& name, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  const engine::SandboxInfo info = engine.inspect(name);
  const engine::NetworkReport report = engine.network(info.id);
  Output& out = call.out();
  if (out.json()) {
    Json json = {{"id", info.id}, {"network", to_string(info.spec.network)}};
    if (report.plan) {
      json["plan"] = to_json(*report.plan);
      json["attached"] = report.attached;
      for (const auto& [key, value] : {std::pair{"connections", report.connections},
                                       {"sent", report.sent},
                                       {"received", report.received},
                                       {"allowed", report.allowed},
                                       {"denied", report.denied},
                                       {"names", report.names}})
        json[key] = value;
    }
    return out.json(json);
  }
  if (!report.plan) return out.line("network " + std::string(to_string(info.spec.network)));
  out.line("network policy" + (report.plan->phase.empty() ? "" : ", phase " + report.plan->phase));
  print_policy(out, report.plan->current(), "  ");
  for (const auto& [phase, policy] : report.plan->phases) {
    if (phase == report.plan->phase) continue;
    out.line("in phase " + phase);
    print_policy(out, policy, "  ");
  }
  if (!report.attached) {
    if (info.state == engine::SandboxState::Running || info.state == engine::SandboxState::Paused)
      out.line("not attached: the gateway is gone, and nothing passes until the next dsec exec or dsec net set");
    return;
  }
  out.line(std::to_string(report.connections) + " connections now; since it was attached " +
           std::to_string(report.allowed) + " requests were allowed and " + std::to_string(report.denied) +
           " denied, " + format_size(report.sent) + " sent and " + format_size(report.received) + " received");
}

struct LogFlags {
  std::string name;
  bool follow = false, denied = false;
};

std::string event_text(const engine::NetworkEvent& event) {
  const std::string time = iso_time(event.time);
  if (event.lost) return time + "  " + std::to_string(event.lost) + " records were not kept: the log was full";
  std::string where = event.host;
  if (!event.address.empty()) where += (where.empty() ? "" : " ") + event.address;
  if (event.port) where += ":" + std::to_string(event.port);
  std::string line =
      time + "  " + event.verdict + "  " + event.protocol + (event.intercepted ? " in tls" : "") + "  " + where;
  if (!event.http.empty()) line += "  " + event.http.front();
  if (event.requests > 1) line += " and " + std::to_string(event.requests - 1) + " more";
  if (event.sent || event.received)
    line += "  " + format_size(event.sent) + " sent, " + format_size(event.received) + " received";
  if (!event.reason.empty()) line += "  (" + event.reason + ")";
  return line;
}

// The log outlives its sandbox.
bool goes_on(engine::Engine& engine, const std::string& name) {
  try {
    const engine::SandboxState state = engine.inspect(name).state;
    return state == engine::SandboxState::Running || state == engine::SandboxState::Paused;
  } catch (const Error&) {
    return false;
  }
}

void log(const LogFlags& flags, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  std::uint64_t from = 0;
  for (;;) {
    // In this order: what was logged before the end is read after it.
    const bool ends = !flags.follow || !goes_on(engine, flags.name);
    for (;;) {
      const std::string lines = engine.network_log(flags.name, from);
      if (lines.empty()) break;
      from += lines.size();
      for (std::size_t begin = 0; begin < lines.size();) {
        const std::size_t end = lines.find('\n', begin);
        Json record = parse_json(std::string_view(lines).substr(begin, end - begin), "network log");
        begin = end + 1;
        const auto event = engine::network_event_from(record);
        if (!event || (flags.denied && event->verdict != "deny")) continue;
        record.erase("crc");
        if (call.out().json())
          call.out().json_line(record);
        else
          call.out().line(printable(event_text(*event)));
      }
    }
    if (ends) return;
    std::this_thread::sleep_for(kLookAgain);
  }
}

struct SetFlags {
  std::string name, phase, op_id;
  std::vector<std::string> allow, deny, inject;
  bool nothing = false, no_inject = false;
  std::optional<bool> strict;
};

void set(const SetFlags& flags, Invocation& call) {
  engine::Engine& engine = call.wiring().engine();
  const bool rules = flags.nothing || !flags.allow.empty() || !flags.deny.empty();
  const bool secrets = flags.no_inject || !flags.inject.empty();
  if (!rules && !secrets && flags.phase.empty() && !flags.strict)
    throw usage_error("nothing to set is given").hint("use --allow, --deny, --nothing, --inject, --strict or --phase");
  if (flags.nothing && (!flags.allow.empty() || !flags.inject.empty()))
    throw usage_error("--nothing contradicts --allow and --inject");
  if (flags.no_inject && !flags.inject.empty()) throw usage_error("--no-inject and --inject contradict each other");
  NetworkChange change;
  if (!flags.phase.empty()) change.phase = flags.phase == "none" ? "" : flags.phase;
  if (rules) {
    change.rules.emplace();
    for (const auto& text : flags.allow) change.rules->allow.push_back(NetworkRule::parse(text));
    for (const auto& text : flags.deny) change.rules->deny.push_back(NetworkRule::parse(text));
  }
  if (secrets || flags.nothing) change.inject.emplace();
  for (const auto& text : flags.inject) change.inject->push_back(HeaderSecret::parse(text));
  change.strict = flags.strict;
  const NetworkPlan plan = attempt("cannot set the network of sandbox " + quote(flags.name), [&] {
    return engine.set_network(flags.name, change, operation_context(flags.op_id));
  });
  if (call.out().json())
    call.out().json(
        {{"id", flags.op_id.empty() ? engine.inspect(flags.name).id : engine.trajectory(flags.name).header.id},
         {"plan", to_json(plan)}});
  else
    call.out().line(flags.name);
}

}  // namespace

void add_net_show(Command& net) {
  auto name = std::make_shared<std::string>();
  Command& verb = net.verb("show", "Show the network policy of a sandbox, and what it has done");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", *name, "Id, unique beginning of an id, or name");
  verb.runs([name](Invocation& call) { show(*name, call); });
}

void add_net_log(Command& net) {
  auto flags = std::make_shared<LogFlags>();
  Command& verb = net.verb("log", "Show what a sandbox asked of the network");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", flags->name, "Id, unique beginning of an id, or name");
  verb.flag("-f,--follow", flags->follow, "Go on until the sandbox has ended");
  verb.flag("--denied", flags->denied, "Only what was denied");
  verb.note("With -o json, one object a line: the records as they are kept.");
  verb.runs([flags](Invocation& call) { log(*flags, call); });
}

void add_net_set(Command& net) {
  auto flags = std::make_shared<SetFlags>();
  Command& verb = net.verb("set", "Replace the network policy of a sandbox, or switch its phase");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", flags->name, "Id, unique beginning of an id, or name");
  verb.options("--allow", "RULE", flags->allow, "Allow a preset, host, address or range, as in example.org:443");
  verb.options("--deny", "RULE", flags->deny, "Deny one, whatever is allowed");
  verb.flag("--nothing", flags->nothing, "Allow nothing");
  verb.options("--inject", "HOST=SECRET", flags->inject,
               "Add a secret header to plain HTTP for a host, as in a.org=env:KEY");
  verb.flag("--no-inject", flags->no_inject, "Add no secrets any more");
  verb.flag("--strict", flags->strict, "Only TLS and HTTP that show whom they are for; --strict=false: end that");
  verb.choice("--phase", flags->phase, {"setup", "agent", "verify", "none"}, "Switch to the policy of a phase");
  declare_op_id(verb, flags->op_id);
  verb.note(
      "The rules given are all that hold from now on, in the present phase if it has a policy of its own, and so are "
      "the "
      "secrets; rules leave secrets as they are. Connections that are no longer allowed are cut at once.");
  verb.example("dsec net set web-1 --allow pypi --allow api.example.com");
  verb.runs([flags](Invocation& call) { set(*flags, call); });
}

}  // namespace dsec::cli
