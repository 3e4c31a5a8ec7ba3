#include "layers/build/project.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/base/yaml.h"
#include "core/model/function_language.h"
#include "layers/build/schema.h"
#include "layers/dockerfile/request.h"
#include "layers/oci/image_documents.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestFile = 16u << 20;
constexpr std::chrono::seconds kGpuWait{60};

bool name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// Replaces ${NAME} in every scalar below a node.
class Substitution {
 public:
  Substitution(const std::map<std::string, std::string>& args, std::vector<Problem>& problems)
      : args_(args), problems_(problems) {}
  std::map<std::string, std::string> used;

  void apply(YAML::Node node) {
    // What an alias stands for is one node, which is met again.
    if (!seen_.insert({node.Mark().pos, node.Type()}).second) return;
    if (node.IsScalar()) {
      if (node.Scalar().find("${") == std::string::npos) return;
      node = replaced(node);
      node.SetTag("!");  // text, whatever it looks like now
    } else if (node.IsSequence()) {
      for (YAML::Node item : node) apply(item);
    } else if (node.IsMap()) {
      for (auto pair : node) apply(pair.second);
    }
  }

  void report_unused() {
    for (const auto& [name, value] : args_)
      if (!used.contains(name)) problems_.push_back({1, 1, "--arg " + name + " is used nowhere as ${" + name + "}"});
  }

 private:
  std::string replaced(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
      if (text.compare(i, 3, "$${") == 0) {
        out += "${";
        i += 3;
      } else if (text.compare(i, 2, "${") == 0) {
        const std::size_t end = text.find('}', i);
        if (end == std::string::npos) {
          report(node, "'${' without '}'; write $${ for a literal ${");
          return text;
        }
        out += value_of(node, std::string_view(text).substr(i + 2, end - i - 2));
        i = end + 1;
      } else {
        out += text[i++];
      }
    }
    return out;
  }

  std::string value_of(const YAML::Node& node, std::string_view expression) {
    const std::size_t colon = expression.find(":-");
    const std::string name(expression.substr(0, colon));
    if (name.empty() || !std::all_of(name.begin(), name.end(), name_character)) {
      report(node, "${" + std::string(expression) + "} is no ${NAME} or ${NAME:-default}; write $${ for a literal ${");
      return "";
    }
    if (const auto given = args_.find(name); given != args_.end()) return used[name] = given->second;
    if (colon == std::string_view::npos) {
      report(node, "${" + name + "} has no value; give --arg " + name + "=VALUE, or write $${" + name +
                       "} for the shell's variable");
      return "";
    }
    return std::string(expression.substr(colon + 2));
  }

  void report(const YAML::Node& node, std::string text) {
    problems_.push_back({node.Mark().line + 1, node.Mark().column + 1, std::move(text)});
  }

  const std::map<std::string, std::string>& args_;
  std::vector<Problem>& problems_;
  std::set<std::pair<int, YAML::NodeType::value>> seen_;  // a mapping begins where its first key does
};

[[noreturn]] void throw_problems(const fs::path& file, std::vector<Problem> problems) {
  throw problems_of(file, std::move(problems)).hint("man 5 dsec.yaml, or dsec env schema for your editor");
}

// ---- reading values that the schema has accepted ----

std::string text_or(const YAML::Node& node, const char* key, std::string fallback = "") {
  return node[key] ? node[key].Scalar() : fallback;
}

std::map<std::string, std::string> text_map(const YAML::Node& node) {
  std::map<std::string, std::string> out;
  if (node)
    for (const auto& pair : node) out.emplace(pair.first.Scalar(), pair.second.Scalar());
  return out;
}

std::vector<std::string> text_list(const YAML::Node& node) {
  std::vector<std::string> out;
  if (node)
    for (const YAML::Node& item : node) out.push_back(item.Scalar());
  return out;
}

// Plain scalars as what they look like: the schema has seen to their kinds.
Json json_of(const YAML::Node& node) {
  if (node.IsMap()) {
    Json json = Json::object();
    for (const auto& pair : node) json[pair.first.Scalar()] = json_of(pair.second);
    return json;
  }
  if (node.IsSequence()) {
    Json json = Json::array();
    for (const YAML::Node& item : node) json.push_back(json_of(item));
    return json;
  }
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  if (bool flag = false; node.Tag() != "!" && YAML::convert<bool>::decode(node, flag)) return flag;
  if (!text.empty() && text.size() < 19 && text.find_first_not_of("0123456789") == std::string::npos)
    return std::stoull(text);
  return text;
}

Place place_of(const YAML::Node& node) { return {node.Mark().line + 1, node.Mark().column + 1}; }

const std::vector<std::string>& file_schemes() {
  static const std::vector<std::string> schemes = {"oci-archive", "docker-archive", "oci-layout", "tar", "dir"};
  return schemes;
}

class Reader {
 public:
  explicit Reader(std::vector<Problem>& problems) : problems_(problems) {}

  LayerRecipe layer(const std::string& key, const YAML::Node& node, int line) {
    LayerRecipe recipe{LayerName::parse(key),
                       text_or(node, "tag", "latest"),
                       text_or(node, "from"),
                       text_or(node, "to"),
                       text_or(node, "history"),
                       text_or(node, "platform"),
                       text_or(node, "compress"),
                       {},
                       {},
                       text_list(node["scrub"]),
                       text_list(node["keep"]),
                       text_map(node["labels"]),
                       line,
                       place_of(node["from"] ? node["from"] : node)};
    if (!valid_tag(recipe.tag)) report(node["tag"], quote(recipe.tag) + " is no valid tag");
    if (node["on"]) recipe.on = LayerRef::parse(node["on"].Scalar());
    if (node["steps"])
      for (const YAML::Node& item : node["steps"])
        if (std::optional<Step> made = step(item)) recipe.steps.push_back(*std::move(made));
    const bool runs = std::any_of(recipe.steps.begin(), recipe.steps.end(),
                                  [](const Step& made) { return std::holds_alternative<RunStep>(made); });
    if (recipe.from.empty() && (!node["steps"] || node["steps"].size() == 0))
      report(node, "a layer needs `from` or `steps`");
    if (!recipe.from.empty() && !recipe.steps.empty())
      report(node, "a layer has either `from` or `steps`; build the steps as a layer on it");
    if (runs && !recipe.on) report(node, "`run` steps need `on`, the layer that they run on");
    if (!recipe.from.empty()) check_source(node["from"]);
    if (!recipe.to.empty()) absolute(node["to"]);
    if (!recipe.platform.empty()) told_at(node["platform"], [&] { Platform::parse(recipe.platform); });
    if (!recipe.history.empty() && !recipe.from.starts_with("git:"))
      report(node["history"], "`history` is for git sources");
    else if (!recipe.history.empty() && recipe.from.find("?history=") != std::string::npos)
      report(node["history"], "`from` has a history already");
    return recipe;
  }

  EnvironmentSpec environment(const std::string& name, const YAML::Node& node) {
    EnvironmentSpec spec{.name = name, .base = LayerRef::parse(node["base"].Scalar())};
    if (node["workspace"]) spec.workspace = LayerRef::parse(node["workspace"].Scalar());
    for (const std::string& toolkit : text_list(node["toolkits"])) spec.toolkits.push_back(LayerRef::parse(toolkit));
    check_kinds(node);
    spec.workdir = text_or(node, "workdir");
    if (!spec.workdir.empty()) absolute(node["workdir"]);
    spec.user = text_or(node, "user");
    spec.hostname = text_or(node, "hostname");
    spec.env = text_map(node["env"]);
    spec.backend = text_or(node, "backend", "container");
    spec.labels = text_map(node["labels"]);
    spec.accept_conflicts = text_or(node, "accept_conflicts", "false") == "true";
    if (node["limits"]) spec.limits = sandbox_limits(node["limits"]);
    spec.devices = devices(node["devices"]);
    if (const YAML::Node lifetime = node["lifetime"]) {
      if (lifetime["idle"]) spec.idle = parse_duration(lifetime["idle"].Scalar());
      if (lifetime["idle_pause"]) spec.idle_pause = parse_duration(lifetime["idle_pause"].Scalar());
      if (lifetime["max"]) spec.lifetime = parse_duration(lifetime["max"].Scalar());
    }
    spec.network = network_wish(node["network"]);
    return spec;
  }

  FunctionSpec function(const std::string& name, const YAML::Node& node) {
    FunctionSpec spec;
    spec.name = name;
    spec.environment = node["environment"].Scalar();
    spec.language = text_or(node, "language");
    if (const FunctionLanguage* language = function_language(spec.language)) {
      spec.command = language->command;
      spec.compile = language->compile;
      spec.warm_up = language->warm_up;
    } else if (!node["command"]) {
      report(node, "key 'command' is missing, or 'language'");
    }
    if (node["command"]) spec.command = command(node["command"]);
    if (node["compile"]) spec.compile = command(node["compile"]);
    if (node["warm_up"]) spec.warm_up = command(node["warm_up"]);
    spec.preload = text_or(node, "preload", "false") == "true";
    if (spec.preload && !spec.compile.empty())
      report(node[node["compile"] ? "compile" : "language"],
             "with `preload` the command starts before there is anything to compile");
    else if (spec.preload && !node["command"])
      report(node["preload"],
             "with `preload` the command starts before a call has brought its program; give a "
             "'command' that reads it from standard input");
    if (const YAML::Node limits = node["limits"]) {
      spec.run_limits = stage_limits(limits);
      spec.limits = sandbox_limits(limits);
    }
    if (node["compile_limits"]) {
      if (spec.compile.empty()) report(node["compile_limits"], "there is no `compile` to limit");
      spec.compile_limits = stage_limits(node["compile_limits"]);
    }
    // A call's streams have their own limit, which ends the call.
    spec.limits.output = Limits{}.output;
    spec.workdir = text_or(node, "workdir");
    if (!spec.workdir.empty()) absolute(node["workdir"]);
    spec.devices = devices(node["devices"]);
    if (node["gpus"]) spec.gpus = gpu_wish(node["gpus"]);
    if (node["pool"]) spec.pool = static_cast<unsigned>(std::min(std::stoul(node["pool"].Scalar()), 10'000ul));
    if (node["pool_idle"]) spec.pool_idle = parse_duration(node["pool_idle"].Scalar());
    if (spec.gpus && spec.gpus->exclusive && spec.pool * spec.gpus->count > spec.gpus->devices.size())
      report(node["pool"], "so many sandboxes cannot each have " + std::to_string(spec.gpus->count) + " of " +
                               std::to_string(spec.gpus->devices.size()) + " devices alone");
    return spec;
  }

 private:
  std::vector<std::string> command(const YAML::Node& node) {
    std::vector<std::string> argv =
        node.IsSequence() ? text_list(node) : std::vector<std::string>{"/bin/sh", "-c", node.Scalar()};
    if (argv.empty() || argv.back().empty()) report(node, "the command is empty");
    return argv;
  }

  // A snapshot, which names what it stands on, may stand anywhere.
  void check_kinds(const YAML::Node& node) {
    std::set<std::string> given;
    const auto check = [&](const YAML::Node& at, LayerKind kind) {
      const LayerRef ref = LayerRef::parse(at.Scalar());
      if (!given.insert(ref.str()).second) return report(at, quote(at.Scalar()) + " stands here twice");
      if (ref.name && ref.name->kind != kind && ref.name->kind != LayerKind::Snapshot)
        report(at, quote(at.Scalar()) + " is a " + std::string(to_string(ref.name->kind)) + ", and a " +
                       std::string(to_string(kind)) + " is expected here");
    };
    check(node["base"], LayerKind::Base);
    if (node["workspace"]) check(node["workspace"], LayerKind::Workspace);
    if (node["toolkits"])
      for (const YAML::Node& toolkit : node["toolkits"]) check(toolkit, LayerKind::Toolkit);
  }

  std::vector<DeviceGrant> devices(const YAML::Node& node) {
    std::vector<DeviceGrant> list;
    if (!node) return list;
    for (const YAML::Node& item : node) told_at(item, [&] { list.push_back(parse_device(item.Scalar())); });
    return list;
  }

  GpuWish gpu_wish(const YAML::Node& node) {
    GpuWish wish{.devices = {}, .count = 1, .exclusive = text_or(node, "mode") != "shared", .wait = kGpuWait};
    for (const DeviceGrant& device : devices(node["devices"])) {
      if (device.source != device.target) report(node["devices"], "these keep their names inside");
      wish.devices.push_back(device.source);
    }
    if (node["count"]) wish.count = std::stoull(node["count"].Scalar());
    if (node["wait"]) wish.wait = parse_duration(node["wait"].Scalar());
    if (wish.count == 0 || wish.count > wish.devices.size())
      report(node["count"] ? node["count"] : node,
             "of " + std::to_string(wish.devices.size()) + " devices " + std::to_string(wish.count) + " cannot be had");
    return wish;
  }

  static Limits sandbox_limits(const YAML::Node& node) {
    Limits limits;
    if (node["cpus"]) limits.cpus = std::stod(node["cpus"].Scalar());
    if (node["memory"]) limits.memory = parse_size(node["memory"].Scalar());
    if (node["pids"]) limits.pids = std::stoull(node["pids"].Scalar());
    if (node["disk"]) limits.disk = parse_size(node["disk"].Scalar());
    if (node["output"]) limits.output = parse_size(node["output"].Scalar());
    if (node["class"]) limits.cpu_class = cpu_class_from(node["class"].Scalar());
    return limits;
  }

  static FunctionLimits stage_limits(const YAML::Node& node) {
    FunctionLimits limits;
    if (node["time"]) limits.time = parse_duration(node["time"].Scalar());
    if (node["cpu_time"]) limits.cpu_time = parse_duration(node["cpu_time"].Scalar());
    if (node["output"]) limits.output = parse_size(node["output"].Scalar());
    return limits;
  }

  NetworkWish network_wish(const YAML::Node& node) {
    NetworkWish wish;
    if (!node) return wish;
    if (node.IsScalar()) {
      wish.mode = node.Scalar() == "host" ? NetworkMode::Host : NetworkMode::None;
      return wish;
    }
    wish.mode = NetworkMode::Policy;
    told_at(node, [&] { wish.plan = network_plan_from_json(json_of(node)); });
    return wish;
  }

  void check_source(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    const std::size_t colon = text.find(':');
    const std::string scheme = colon == std::string::npos ? text : text.substr(0, colon);
    const bool known = scheme == "git" || scheme == "debootstrap" || scheme == "docker" || scheme == "dockerfile" ||
                       is_file_scheme(scheme);
    if (!known || colon == std::string::npos) {
      std::vector<std::string> schemes = file_schemes();
      schemes.insert(schemes.end(), {"git", "debootstrap", "docker", "dockerfile"});
      const std::vector<std::string> near = nearest_names(scheme, schemes, 1);
      return report(node, quote(text) + " is no source" +
                              (near.empty() ? "; see man dsec-sources" : "; did you mean " + near[0] + ":?"));
    }
    if (scheme == "dockerfile") told_at(node, [&] { dockerfile::Request::parse(text, ""); });
  }

  std::optional<Step> step(const YAML::Node& node) {
    if (node["run"]) {
      RunStep run;
      run.argv = command(node["run"]);
      run.workdir = text_or(node, "workdir");
      if (!run.workdir.empty()) absolute(node["workdir"]);
      run.user = text_or(node, "user");
      run.env = text_map(node["env"]);
      run.network = network_wish(node["network"]);
      if (node["copy"] || node["git"]) report(node, "a step has one kind: `run` stands here with another");
      return run;
    }
    if (node["network"]) report(node["network"], "`network` belongs to a `run` step");
    if (node.size() - (node["network"] ? 1 : 0) != 1) {
      report(node, "a step has exactly one of run, copy, git, env, workdir, user");
      return std::nullopt;
    }
    if (const YAML::Node copy = node["copy"]) return copy_step(copy);
    if (const YAML::Node git = node["git"]) {
      GitStep made{git["url"].Scalar(), git["rev"].Scalar(), text_or(git, "to", "/workspace"),
                   text_or(git, "history", "past"), place_of(git["url"])};
      if (git["to"]) absolute(git["to"]);
      return made;
    }
    if (node["env"]) return EnvStep{text_map(node["env"])};
    if (node["workdir"]) {
      absolute(node["workdir"]);
      return WorkdirStep{node["workdir"].Scalar()};
    }
    return UserStep{node["user"].Scalar()};
  }

  CopyStep copy_step(const YAML::Node& copy) {
    CopyStep made{copy["from"].Scalar(), copy["to"].Scalar(), {}, place_of(copy["from"])};
    absolute(copy["to"]);
    const fs::path normal = fs::path(made.from).lexically_normal();
    if (normal.is_absolute() || (!normal.empty() && *normal.begin() == ".."))
      report(copy["from"], quote(made.from) + " leads out of the project");
    if (copy["mode"]) {
      const std::string mode = copy["mode"].Scalar();
      if (mode.empty() || mode.size() > 5 || mode.find_first_not_of("01234567") != std::string::npos ||
          std::stoul(mode, nullptr, 8) > 07777)
        report(copy["mode"], quote(mode) + " is no octal mode like \"0644\"");
      else
        made.mode = static_cast<std::uint32_t>(std::stoul(mode, nullptr, 8));
    }
    return made;
  }

  void absolute(const YAML::Node& node) {
    const fs::path path = node.Scalar();
    const bool climbs = std::find(path.begin(), path.end(), "..") != path.end();
    if (!path.is_absolute() || climbs) report(node, quote(path.native()) + " is no absolute path without '..'");
  }

  template <typename Read>
  void told_at(const YAML::Node& node, Read&& read) {
    try {
      read();
    } catch (const Error& error) {
      report(node, error.message());
    }
  }

  void report(const YAML::Node& node, std::string text) {
    problems_.push_back({node.Mark().line + 1, node.Mark().column + 1, std::move(text)});
  }

  std::vector<Problem>& problems_;
};

void add_reference(Project& project, const std::string& by, const YAML::Node& node) {
  if (node) project.references.push_back({by, LayerRef::parse(node.Scalar()), place_of(node)});
}

// The entries of one part of the file. Where something is wrong with the shape of the file, those that are as they
// should be by themselves, so that what is wrong with their values is told with the rest.
template <typename Read>
void each_well_formed(const YAML::Node& root, const char* part, bool choose, Read&& read) {
  const YAML::Node entries = root[part];
  if (!entries || !entries.IsMap()) return;
  for (const auto& pair : entries)
    if (!choose || (pair.first.IsScalar() && is_entry(part, pair.first.Scalar(), pair.second)))
      read(pair.first, pair.second);
}

// What only shows when everything has been read: names that stand twice, layers that stand on each other in a ring.
void check_relations(const Project& project, const YAML::Node& root, std::vector<Problem>& problems) {
  for (const LayerRecipe& recipe : project.layers) {
    std::set<const LayerRecipe*> passed;
    for (const LayerRecipe* at = &recipe; at && at->on; at = project.layer(*at->on)) {
      if (passed.insert(at).second) continue;
      if (at == &recipe) problems.push_back({recipe.line, 3, quote(recipe.name.str()) + " stands on itself"});
      break;
    }
  }
  for (const FunctionSpec& function : project.functions) {
    if (project.environment(function.environment)) continue;
    const YAML::Mark at = root["functions"][function.name]["environment"].Mark();
    std::vector<std::string> names;
    for (const EnvironmentSpec& spec : project.environments) names.push_back(spec.name);
    const std::vector<std::string> near = nearest_names(function.environment, names, 1);
    problems.push_back({at.line + 1, at.column + 1,
                        "there is no environment " + quote(function.environment) +
                            (near.empty() ? "" : "; did you mean " + quote(near[0]) + "?")});
  }
  if (const YAML::Node version = root["version"]; version.Scalar() != "1")
    problems.push_back({version.Mark().line + 1, version.Mark().column + 1,
                        "version " + version.Scalar() + " is unknown; this dsec knows 1"});
}

}  // namespace

bool is_file_scheme(std::string_view scheme) {
  return std::find(file_schemes().begin(), file_schemes().end(), scheme) != file_schemes().end();
}

Project Project::load(const fs::path& file, const std::map<std::string, std::string>& args) {
  return parse(read_file(file, kLargestFile), file, args);
}

Project Project::parse(std::string_view yaml, const fs::path& file, const std::map<std::string, std::string>& args) {
  std::vector<Problem> problems;
  YAML::Node root;
  try {
    root = load_yaml(std::string(yaml));
  } catch (const YAML::Exception& error) {
    throw_problems(file, {{error.mark.line + 1, error.mark.column + 1, error.msg}});
  }
  if (!root.IsMap()) throw_problems(file, {{1, 1, "a mapping with version, layers and environments is expected"}});
  Substitution substitution(args, problems);
  substitution.apply(root);
  substitution.report_unused();
  const std::vector<Problem> shape_problems = check_shape(root, project_shape());
  problems.insert(problems.end(), shape_problems.begin(), shape_problems.end());

  Project project{file, fs::absolute(file).parent_path(), substitution.used, {}, {}, {}, {}};
  Reader reader(problems);
  const auto entries = [&](const char* key, auto&& read) {
    each_well_formed(root, key, !shape_problems.empty(), read);
  };
  entries("layers", [&](const YAML::Node& key, const YAML::Node& node) {
    project.layers.push_back(reader.layer(key.Scalar(), node, key.Mark().line + 1));
    add_reference(project, project.layers.back().ref(), node["on"]);
  });
  entries("environments", [&](const YAML::Node& key, const YAML::Node& node) {
    const std::string name = key.Scalar();
    project.environments.push_back(reader.environment(name, node));
    add_reference(project, name, node["base"]);
    add_reference(project, name, node["workspace"]);
    for (const YAML::Node& toolkit : node["toolkits"]) add_reference(project, name, toolkit);
  });
  entries("functions", [&](const YAML::Node& key, const YAML::Node& node) {
    project.functions.push_back(reader.function(key.Scalar(), node));
  });
  if (!shape_problems.empty()) throw_problems(file, std::move(problems));
  check_relations(project, root, problems);
  if (!problems.empty()) throw_problems(file, std::move(problems));
  return project;
}

const LayerRecipe* Project::layer(const LayerRef& ref) const {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const LayerRecipe& recipe) {
    if (!ref.name || *ref.name != recipe.name || ref.digest_prefix) return false;
    // A reference without a tag means the project's layer of that name, whatever its tag.
    return ref.tag == recipe.tag || ref.tag == "latest";
  });
  return found == layers.end() ? nullptr : &*found;
}

const EnvironmentSpec* Project::environment(std::string_view name) const {
  const auto found =
      std::find_if(environments.begin(), environments.end(), [&](const auto& spec) { return spec.name == name; });
  return found == environments.end() ? nullptr : &*found;
}

const FunctionSpec* Project::function(std::string_view name) const {
  const auto found =
      std::find_if(functions.begin(), functions.end(), [&](const auto& spec) { return spec.name == name; });
  return found == functions.end() ? nullptr : &*found;
}

// ---- canonical forms ----

namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

Json to_json(const Step& step) {
  return std::visit(
      Overloaded{
          [](const RunStep& run) -> Json {
            return {{"run", run.argv},
                    {"workdir", run.workdir},
                    {"user", run.user},
                    {"env", run.env},
                    {"network", run.network.mode == NetworkMode::Policy ? to_json(run.network.plan)
                                                                        : Json(to_string(run.network.mode))}};
          },
          [](const CopyStep& copy) -> Json {
            return {{"copy", {{"from", copy.from}, {"to", copy.to}, {"mode", copy.mode ? Json(*copy.mode) : Json()}}}};
          },
          [](const GitStep& git) -> Json {
            return {{"git", {{"url", git.url}, {"rev", git.rev}, {"to", git.to}, {"history", git.history}}}};
          },
          [](const EnvStep& env) -> Json {
            return {{"env", env.values}};
          },
          [](const WorkdirStep& workdir) -> Json {
            return {{"workdir", workdir.path}};
          },
          [](const UserStep& user) -> Json {
            return {{"user", user.user}};
          },
      },
      step);
}

std::string brief(const Step& step) {
  constexpr std::size_t kLongest = 60;
  std::string text = std::visit(Overloaded{
                                    [](const RunStep& run) {
                                      std::string line = "run:";
                                      const bool shell =
                                          run.argv.size() == 3 && run.argv[0] == "/bin/sh" && run.argv[1] == "-c";
                                      for (std::size_t i = shell ? 2 : 0; i < run.argv.size(); ++i)
                                        line += " " + run.argv[i];
                                      return line;
                                    },
                                    [](const CopyStep& copy) { return "copy: " + copy.from + " to " + copy.to; },
                                    [](const GitStep& git) { return "git: " + git.url + " at " + git.rev; },
                                    [](const EnvStep& env) {
                                      std::string line = "env:";
                                      for (const auto& [name, value] : env.values) line += " " + name;
                                      return line;
                                    },
                                    [](const WorkdirStep& workdir) { return "workdir: " + workdir.path; },
                                    [](const UserStep& user) { return "user: " + user.user; },
                                },
                                step);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

Digest LayerRecipe::digest() const {
  Json json = {{"name", name.str()},        {"from", from},         {"to", to},
               {"history", history},        {"platform", platform}, {"compress", compress},
               {"on", on ? on->str() : ""}, {"scrub", scrub},       {"keep", keep}};
  json["steps"] = Json::array();
  for (const Step& step : steps) json["steps"].push_back(to_json(step));
  return Digest::of(canonical_json(json));
}

}  // namespace dsec::layers
