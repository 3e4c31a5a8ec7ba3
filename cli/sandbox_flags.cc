#include "cli/sandbox_flags.h"

#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "cli/command.h"
#include "cli/environment.h"
#include "cli/fetch.h"
#include "cli/invocation.h"
#include "cli/registry_flags.h"
#include "cli/terminal.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace fs = std::filesystem;

void declare(Command& command, SandboxFlags& flags) {
  command.positionals("ENV|REF", flags.what, "An environment of dsec.yaml, or layers: base, workspace, toolkits", 0);
  command.option("-f,--file", "FILE", flags.file, "Where the environment is described (default: dsec.yaml)");
  command.options("--arg", "NAME=VALUE", flags.args, "Value of ${NAME} in that file");
  command.option("--base", "REF", flags.base, "Base layer");
  command.option("--workspace", "REF", flags.workspace, "Workspace layer over the base");
  command.options("--toolkit", "REF", flags.toolkits, "Toolkit layer over the workspace");
  command.options("--registry", "NAME|URL", flags.registries,
                  "Where to pull layers from that are not here (default: all that are configured)");
  declare_on_demand(command, flags.on_demand);
  declare_offline(command, flags.offline);
  command.option("--name", "NAME", flags.name, "Name of the sandbox");
  command.options("-l,--label", "KEY=VALUE", flags.labels, "Label of the sandbox");
  command.options("-e,--env", "NAME[=VALUE]", flags.env, "Set a variable; without a value, take it from here");
  command.options("--env-file", "FILE", flags.env_files, "Set the variables of a file, one a line");
  command.option("-w,--workdir", "PATH", flags.workdir, "Directory that commands start in");
  command.option("-u,--user", "USER[:GROUP]", flags.user, "User that commands run as");
  command.option("--entrypoint", "PROGRAM", flags.entrypoint, "Replace the layers' entrypoint; empty: none");
  command.options("-v,--volume", "PATH:PATH[:ro]", flags.binds, "Bind a path of this host into the sandbox");
  command.options("--device", "PATH[:PATH]", flags.devices, "Give the sandbox a character device of this host");
  command.decimal("--cpus", flags.cpus, "CPU time, in cores; 0: no limit");
  command.choice("--class", flags.cpu_class, {"latency", "batch", "default"},
                 "When processors are short: come before others, or take what they leave");
  command.size("-m,--memory", flags.memory, "Memory limit; 0: none");
  command.number("--pids,--pids-limit", flags.pids, "Limit of processes and threads; 0: none");
  command.size("--disk", flags.disk, "Limit of the writable layer; 0: none");
  command.size("--output-limit", flags.output_limit, "Bytes kept of each stream of a command (default: 64MiB)");
  command.duration("--lifetime", flags.lifetime, "End so long after creation; 0: never");
  command.duration("--idle", flags.idle, "End when no command ran for so long; 0: never");
  command.duration("--idle-pause", flags.idle_pause, "Pause when no command ran for so long; the next one resumes");
  command.choice("--network", flags.network, {"none", "host", "policy"}, "Network of the sandbox (default: none)");
  command.options("--allow", "RULE", flags.allow, "Allow a preset, host, address or range, as in example.org:443");
  command.options("--deny", "RULE", flags.deny, "Deny one, whatever is allowed");
  command.options("--inject", "HOST=SECRET", flags.inject,
                  "Add a secret header to plain HTTP for a host, as in a.org=env:KEY");
  command.flag("--intercept-tls", flags.intercept_tls, "Read the sandbox's TLS, with an authority it is told to trust");
  command.choice("--userns", flags.userns, {"auto", "host"},
                 "User namespace; host: root inside is root outside (default: auto)");
  command.option("--hostname", "NAME", flags.hostname, "Host name inside (default: the id)");
  command.flag("--read-only", flags.read_only, "No writable layer");
  command.flag("--accept-conflicts", flags.accept_conflicts,
               "Accept layers that put a file where another has a directory and the like");
  command.option("--backend", "NAME", flags.backend, "How the sandbox is isolated (default: container)");
  command.choice("--pmem", flags.pmem, {"auto", "on", "off"},
                 "Whether layers are memory of a microVM's guest (default: auto)");
  command.option("--user-data", "FILE", flags.user_data, "What cloud-init of a fullvm is told");
}

void add_variable(std::vector<std::string>& env, const std::string& text) {
  const std::string name = engine::variable_name(text);
  if (name != text) return engine::set_variable(env, text);
  if (const char* value = std::getenv(name.c_str())) engine::set_variable(env, name + "=" + value);
}

void add_variables_of_file(std::vector<std::string>& env, const std::string& path) {
  const std::string text = read_file(path, 16 << 20);
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos || line[first] == '#') continue;
    line.erase(0, first);
    if (line.substr(0, line.find('=')).find_first_of(" \t") != std::string::npos)
      throw usage_error(path + ":" + std::to_string(number) + ": the name of a variable has no blanks");
    attempt(path + ":" + std::to_string(number), [&] { add_variable(env, line); });
  }
}

std::map<std::string, std::string> parse_labels(const std::vector<std::string>& texts) {
  std::map<std::string, std::string> labels;
  for (const auto& text : texts) {
    const std::size_t equals = text.find('=');
    if (text.empty() || equals == 0) throw usage_error(quote(text) + " is no label").hint("write KEY=VALUE");
    labels[text.substr(0, equals)] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  return labels;
}

BindMount parse_bind(const std::string& text) {
  const auto fault = [&](const std::string& why) {
    return usage_error("cannot bind " + quote(text) + ": " + why).hint("write HOST_PATH:PATH, or HOST_PATH:PATH:ro");
  };
  std::string rest = text;
  BindMount bind;
  if (const std::size_t last = rest.rfind(':'); last != std::string::npos && last + 1 < rest.size()) {
    const std::string mode = rest.substr(last + 1);
    if (mode == "ro" || mode == "rw") {
      bind.read_only = mode == "ro";
      rest.erase(last);
    } else if (mode.front() != '/') {
      throw fault("the path in the sandbox must be absolute, or " + quote(mode) + " is no mode (ro, rw)");
    }
  }
  // A host path may contain ':', the path inside begins with '/'.
  const std::size_t colon = rest.rfind(":/");
  if (colon == std::string::npos || colon == 0) throw fault("it needs two paths");
  bind.target = rest.substr(colon + 1);
  std::error_code problem;
  const fs::path source = fs::canonical(rest.substr(0, colon), problem);
  if (problem) throw fault("the host has no " + quote(rest.substr(0, colon)) + ": " + errno_text(problem.value()));
  bind.source = source;
  return bind;
}

namespace {

engine::SandboxRequest request_of_layers(const SandboxFlags& flags) {
  engine::SandboxRequest request;
  const auto add = [&](const std::string& ref) { request.layers.push_back(LayerRef::parse(ref)); };
  for (const auto& ref : flags.what) {
    try {
      add(ref);
    } catch (Error& error) {
      if (&ref != &flags.what.front()) error.hint("the command in the sandbox goes after --");
      throw;
    }
  }
  if (!flags.base.empty()) add(flags.base);
  if (!flags.workspace.empty()) add(flags.workspace);
  for (const auto& ref : flags.toolkits) add(ref);
  if (request.layers.empty())
    throw usage_error("nothing to run is given")
        .hint("name an environment of dsec.yaml, or layers: base/NAME workspace/NAME toolkit/NAME");
  return request;
}

// Layers are named by kind/name or digest; what could be an environment's name or a digest prefix is an environment
// when dsec.yaml has one of that name.
bool names_environment(const SandboxFlags& flags) {
  if (flags.what.size() != 1 || !flags.base.empty()) return false;
  const std::string& name = flags.what.front();
  if (!valid_environment_name(name)) return false;
  const bool digits = name.size() >= 4 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
  return !digits || has_environment(name, flags.file, parse_labels(flags.args));
}

template <typename T>
void put(T& target, const T& value) {
  if (value != T{}) target = value;
}

// 0 is no limit, whatever the environment says.
template <typename T>
void put_limit(std::optional<T>& target, const std::optional<T>& value) {
  if (value) target = *value > T{} ? value : std::nullopt;
}

// Rules are added to what the environment allows and denies; `none` and `host` replace all of it.
void put_network(const SandboxFlags& flags, SandboxSpec& spec) {
  const bool rules = !flags.allow.empty() || !flags.deny.empty() || !flags.inject.empty() || flags.intercept_tls;
  if (rules && (flags.network == "none" || flags.network == "host"))
    throw usage_error("--allow, --deny, --inject and --intercept-tls make a policy, and --network " + flags.network +
                      " is none")
        .hint("leave --network out");
  if (flags.network == "none") spec.network = NetworkMode::None;
  if (flags.network == "host") spec.network = NetworkMode::Host;
  if (flags.network == "policy" || rules) spec.network = NetworkMode::Policy;
  if (spec.network != NetworkMode::Policy) spec.network_plan = {};
  for (const auto& text : flags.allow) spec.network_plan.base.allow.push_back(NetworkRule::parse(text));
  for (const auto& text : flags.deny) spec.network_plan.base.deny.push_back(NetworkRule::parse(text));
  for (const auto& text : flags.inject) spec.network_plan.base.inject.push_back(HeaderSecret::parse(text));
  if (flags.intercept_tls) spec.network_plan.intercept_tls = true;
}

void put_flags(const SandboxFlags& flags, engine::SandboxRequest& request) {
  SandboxSpec& spec = request.settings;
  for (const auto& path : flags.env_files) add_variables_of_file(spec.config.env, path);
  for (const auto& text : flags.env) add_variable(spec.config.env, text);
  if (!flags.workdir.empty() && flags.workdir.front() != '/')
    throw usage_error("working directory " + quote(flags.workdir) + " is not absolute");
  put(spec.config.workdir, flags.workdir);
  put(spec.config.user, flags.user);
  if (flags.entrypoint)
    request.entrypoint = flags.entrypoint->empty() ? std::vector<std::string>{} : std::vector{*flags.entrypoint};
  for (const auto& text : flags.binds) spec.binds.push_back(parse_bind(text));
  for (auto& [key, value] : parse_labels(flags.labels)) spec.labels[key] = value;
  put(spec.name, flags.name);
  put(spec.backend, flags.backend);
  put(spec.hostname, flags.hostname);
  put_limit(spec.limits.cpus, flags.cpus);
  put_limit(spec.limits.memory, flags.memory);
  put_limit(spec.limits.pids, flags.pids);
  put_limit(spec.limits.disk, flags.disk);
  if (!flags.cpu_class.empty()) spec.limits.cpu_class = cpu_class_from(flags.cpu_class);
  for (const auto& text : flags.devices) spec.devices.push_back(parse_device(text));
  if (flags.output_limit) spec.limits.output = *flags.output_limit;
  put(spec.lifetime, flags.lifetime);
  put(spec.idle, flags.idle);
  put(spec.idle_pause, flags.idle_pause);
  put_network(flags, spec);
  if (!flags.userns.empty()) spec.userns = flags.userns == "host" ? UserNamespace::Host : UserNamespace::Auto;
  if (!flags.pmem.empty()) spec.pmem = pmem_use_from(flags.pmem);
  if (flags.read_only) spec.read_only = true;
  // It stands in the sandbox's record as a whole.
  if (!flags.user_data.empty()) spec.user_data = read_file(flags.user_data, 64 << 10);
  if (flags.accept_conflicts) spec.accept_conflicts = true;
}

// The layers of a context are those that its edge has; what names something of this host means nothing there.
SandboxSpec compose_there(Wiring& wiring, const SandboxFlags& flags, const engine::SandboxRequest& request) {
  const auto refuse = [&](bool given, const char* what) {
    if (given)
      throw usage_error(std::string(what) + " is for sandboxes of this host, and the context is " +
                        quote(wiring.context()))
          .hint("leave it out");
  };
  refuse(!flags.binds.empty(), "-v");
  refuse(!flags.registries.empty(), "--registry");
  refuse(flags.on_demand, "--on-demand");
  const auto get = [&](const LayerRef& ref) { return wiring.engine().layer(ref); };
  std::vector<engine::StoredLayer> layers;
  for (const LayerRef& ref : request.layers) layers.push_back(get(ref));
  return engine::compose_spec(engine::with_lowers(get, std::move(layers)), request);
}

}  // namespace

SandboxSpec compose(Invocation& call, const SandboxFlags& flags) {
  const bool environment = names_environment(flags);
  engine::SandboxRequest request =
      environment ? request_of_environment(flags.what.front(), flags.file, parse_labels(flags.args))
                  : request_of_layers(flags);
  put_flags(flags, request);
  if (!call.wiring().context().empty()) return compose_there(call.wiring(), flags, request);
  std::vector<engine::StoredLayer> layers;
  try {
    layers = find_or_pull(call, request.layers, flags.registries, pull_mode(flags.on_demand), flags.offline);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Usage && environment && !is_offline(flags.offline))
      refuse_dangling_references(call, flags.what.front(), flags.file, parse_labels(flags.args));
    throw;
  }
  call.end_progress();
  return engine::compose_spec(engine::with_lowers(call.wiring().layer_store(), std::move(layers)), request);
}

void declare_op_id(Command& command, std::string& op_id) {
  command.option("--op-id", "NAME", op_id, "Name it: repeated, what is recorded comes again and nothing is done");
}

OperationContext operation_context(const std::string& op_id) {
  check_op_id(op_id);
  return {.op_id = op_id, .origin = Origin::Cli};
}

void declare(Command& command, ExecFlags& flags) {
  command.flag("-i,--interactive", flags.interactive, "Give it our standard input (default: on a terminal)");
  command.flag("-t,--tty", flags.tty, "Give it a TTY; --tty=false: none (default: on a terminal)");
  command.flag("-d,--detach", flags.detach, "Do not wait for its end");
  command.duration("--timeout", flags.timeout,
                   "End it and all its processes after so long, with exit code 124; 0: never");
  declare_op_id(command, flags.op_id);
}

void apply(const ExecFlags& flags, bool json, ExecSpec& spec) {
  const bool terminal = on_terminal() && !json && !flags.detach;
  spec.tty = flags.tty.value_or(terminal);
  spec.open_stdin = flags.interactive.value_or(terminal && spec.tty);
  spec.detach = flags.detach;
  spec.timeout = flags.timeout;
  spec.operation = operation_context(flags.op_id);
  if (!spec.tty) return;
  std::tie(spec.rows, spec.columns) = terminal_size();
  const char* term = std::getenv("TERM");
  engine::set_variable(spec.env, std::string("TERM=") + (terminal && term && *term ? term : "xterm"));
}

}  // namespace dsec::cli
