#include "core/model/sandbox_spec.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"

namespace dsec {
namespace {
using std::chrono::milliseconds;

template <typename T>
std::optional<T> optional_member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

std::optional<milliseconds> optional_ms(const Json& json, const char* key) {
  const auto count = optional_member<std::int64_t>(json, key);
  return count ? std::optional(milliseconds(*count)) : std::nullopt;
}

template <typename T>
void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

void put(Json& json, const char* key, const std::optional<milliseconds>& value) {
  if (value) json[key] = value->count();
}

// nlohmann reports a wrong type as its own exception; every Json that reaches us may be a file somebody edited.
template <typename Read>
auto read_json(std::string_view what, Read&& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw usage_error(std::string(what) + " is not valid: " + error.what());
  }
}

constexpr std::pair<std::string_view, CpuClass> kCpuClasses[] = {
    {"default", CpuClass::Default}, {"latency", CpuClass::Latency}, {"batch", CpuClass::Batch}};

constexpr std::pair<std::string_view, PmemUse> kPmemUses[] = {
    {"auto", PmemUse::Auto}, {"on", PmemUse::On}, {"off", PmemUse::Off}};

Limits limits_from_json(const Json& json) {
  Limits limits;
  limits.output = json.value("output", limits.output);
  limits.cpus = optional_member<double>(json, "cpus");
  limits.memory = optional_member<std::uint64_t>(json, "memory");
  limits.pids = optional_member<std::uint64_t>(json, "pids");
  limits.disk = optional_member<std::uint64_t>(json, "disk");
  limits.cpu_class = cpu_class_from(json.value("class", "default"));
  limits.class_by = json.value("class_by", "");
  return limits;
}

GpuWish gpu_wish_from_json(const Json& json) {
  return {.devices = json.value("devices", std::vector<std::string>{}),
          .count = json.value("count", std::uint64_t{1}),
          .exclusive = json.value("mode", "exclusive") != "shared",
          .wait = milliseconds(json.value("wait_ms", std::int64_t{0}))};
}

// Whether nothing in it leads out: "/dev/a/b", and no "..".
bool is_below_dev(const std::string& path) {
  return path.starts_with("/dev/") && path.size() > 5 && path.find(':') == std::string::npos && path.back() != '/' &&
         std::filesystem::path(path).lexically_normal().native() == path;
}

}  // namespace

std::string_view to_string(CpuClass cpu_class) {
  for (const auto& [word, value] : kCpuClasses)
    if (value == cpu_class) return word;
  return "default";
}

CpuClass cpu_class_from(std::string_view word) {
  for (const auto& [known, value] : kCpuClasses)
    if (known == word) return value;
  throw usage_error(quote(word) + " is no class of processor time").hint("use latency, batch or default");
}

std::string_view to_string(PmemUse use) {
  for (const auto& [word, value] : kPmemUses)
    if (value == use) return word;
  return "auto";
}

PmemUse pmem_use_from(std::string_view word) {
  for (const auto& [known, value] : kPmemUses)
    if (known == word) return value;
  throw usage_error(quote(word) + " does not say whether guests map layers").hint("use auto, on or off");
}

DeviceGrant parse_device(const std::string& text) {
  const std::size_t colon = text.find(':');
  DeviceGrant device{text.substr(0, colon), colon == std::string::npos ? text : text.substr(colon + 1)};
  if (!is_below_dev(device.source) || !is_below_dev(device.target))
    throw usage_error("cannot give the device " + quote(text) + ": it needs paths below /dev, without '..'")
        .hint("write /dev/NAME, or /dev/NAME:/dev/NAME_INSIDE");
  return device;
}

Json to_json(const Limits& limits) {
  Json json = {{"output", limits.output}};
  put(json, "cpus", limits.cpus);
  put(json, "memory", limits.memory);
  put(json, "pids", limits.pids);
  put(json, "disk", limits.disk);
  if (limits.cpu_class != CpuClass::Default) json["class"] = to_string(limits.cpu_class);
  if (!limits.class_by.empty()) json["class_by"] = limits.class_by;
  return json;
}

Json to_json(const GpuWish& wish) {
  return {{"devices", wish.devices},
          {"count", wish.count},
          {"mode", wish.exclusive ? "exclusive" : "shared"},
          {"wait_ms", wish.wait.count()}};
}

std::string_view to_string(NetworkMode mode) {
  switch (mode) {
    case NetworkMode::None:
      return "none";
    case NetworkMode::Host:
      return "host";
    case NetworkMode::Policy:
      return "policy";
  }
  return "none";
}

Json to_json(const SandboxSpec& spec) {
  Json json = {{"name", spec.name},
               {"environment", spec.environment},
               {"backend", spec.backend},
               {"accept_conflicts", spec.accept_conflicts},
               {"config", to_json(spec.config)},
               {"hostname", spec.hostname},
               {"network", to_string(spec.network)},
               {"userns", spec.userns == UserNamespace::Host ? "host" : "auto"},
               {"labels", spec.labels},
               {"read_only", spec.read_only},
               {"made_for_command", spec.made_for_command},
               {"remove_at_end", spec.remove_at_end},
               {"record", spec.record}};
  if (spec.network == NetworkMode::Policy) json["network_plan"] = to_json(spec.network_plan);
  json["layers"] = Json::array();
  for (const Digest& layer : spec.layers) json["layers"].push_back(layer.str());
  json["binds"] = Json::array();
  for (const BindMount& bind : spec.binds)
    json["binds"].push_back({{"source", bind.source}, {"target", bind.target}, {"read_only", bind.read_only}});
  for (const TmpfsMount& mount : spec.tmpfs) json["tmpfs"].push_back({{"target", mount.target}, {"size", mount.size}});
  json["limits"] = to_json(spec.limits);
  for (const DeviceGrant& device : spec.devices)
    json["devices"].push_back({{"source", device.source}, {"target", device.target}});
  if (spec.gpus) json["gpus"] = to_json(*spec.gpus);
  put(json, "lifetime_ms", spec.lifetime);
  put(json, "idle_ms", spec.idle);
  put(json, "idle_pause_ms", spec.idle_pause);
  if (!spec.machine_id.empty()) json["machine_id"] = spec.machine_id;
  if (spec.pmem != PmemUse::Auto) json["pmem"] = to_string(spec.pmem);
  if (!spec.user_data.empty()) json["user_data"] = spec.user_data;
  return json;
}

SandboxSpec sandbox_spec_from_json(const Json& json) {
  return read_json("sandbox specification", [&] {
    SandboxSpec spec;
    spec.name = json.value("name", "");
    spec.environment = json.value("environment", "");
    spec.backend = json.value("backend", "container");
    spec.accept_conflicts = json.value("accept_conflicts", false);
    spec.config = image_config_from_json(json.value("config", Json::object()));
    spec.hostname = json.value("hostname", "");
    const std::string network = json.value("network", "none");
    spec.network = network == "host"     ? NetworkMode::Host
                   : network == "policy" ? NetworkMode::Policy
                                         : NetworkMode::None;
    if (spec.network == NetworkMode::Policy)
      spec.network_plan = network_plan_from_json(json.value("network_plan", Json::object()));
    spec.userns = json.value("userns", "auto") == "host" ? UserNamespace::Host : UserNamespace::Auto;
    spec.labels = json.value("labels", std::map<std::string, std::string>{});
    spec.read_only = json.value("read_only", false);
    spec.made_for_command = json.value("made_for_command", false);
    spec.remove_at_end = json.value("remove_at_end", false);
    spec.record = json.value("record", true);
    for (const Json& layer : json.value("layers", Json::array()))
      spec.layers.push_back(Digest::parse(layer.get<std::string>()));
    for (const Json& bind : json.value("binds", Json::array()))
      spec.binds.push_back({json_string(bind, "source"), json_string(bind, "target"), bind.value("read_only", false)});
    for (const Json& mount : json.value("tmpfs", Json::array()))
      spec.tmpfs.push_back({json_string(mount, "target"), mount.value("size", std::uint64_t{0})});
    spec.limits = limits_from_json(json.value("limits", Json::object()));
    for (const Json& device : json.value("devices", Json::array()))
      spec.devices.push_back({json_string(device, "source"), json_string(device, "target")});
    if (const auto gpus = json.find("gpus"); gpus != json.end()) spec.gpus = gpu_wish_from_json(*gpus);
    spec.lifetime = optional_ms(json, "lifetime_ms");
    spec.idle = optional_ms(json, "idle_ms");
    spec.idle_pause = optional_ms(json, "idle_pause_ms");
    spec.machine_id = json.value("machine_id", "");
    spec.pmem = pmem_use_from(json.value("pmem", "auto"));
    spec.user_data = json.value("user_data", "");
    return spec;
  });
}

Json to_json(const ExecSpec& spec) {
  Json json = {{"argv", spec.argv},
               {"env", spec.env},
               {"workdir", spec.workdir},
               {"user", spec.user},
               {"tty", spec.tty},
               {"rows", spec.rows},
               {"columns", spec.columns},
               {"stdin", spec.open_stdin},
               {"main", spec.main},
               {"detach", spec.detach},
               {"op_id", spec.operation.op_id},
               {"origin", to_string(spec.operation.origin)}};
  put(json, "timeout_ms", spec.timeout);
  put(json, "output_limit", spec.output_limit);
  return json;
}

ExecSpec exec_spec_from_json(const Json& json) {
  return read_json("command specification", [&] {
    ExecSpec spec;
    spec.argv = json.value("argv", std::vector<std::string>{});
    spec.env = json.value("env", std::vector<std::string>{});
    spec.workdir = json.value("workdir", "");
    spec.user = json.value("user", "");
    spec.tty = json.value("tty", false);
    spec.rows = json.value("rows", std::uint16_t{24});
    spec.columns = json.value("columns", std::uint16_t{80});
    spec.open_stdin = json.value("stdin", false);
    spec.main = json.value("main", false);
    spec.detach = json.value("detach", false);
    spec.operation = {json.value("op_id", ""), origin_from(json.value("origin", "sdk"))};
    spec.timeout = optional_ms(json, "timeout_ms");
    spec.output_limit = optional_member<std::uint64_t>(json, "output_limit");
    return spec;
  });
}

int ExecResult::shell_code() const noexcept {
  switch (cause) {
    case Cause::Exited:
      return exit_code;
    case Cause::Signalled:
    case Cause::OutOfMemory:
      return 128 + signal;
    case Cause::TimedOut:
      return 124;
    case Cause::CannotExecute:
      return 126;
    case Cause::NotFound:
      return 127;
    case Cause::Lost:
    case Cause::Unknown:
      return 125;
  }
  return 125;
}

}  // namespace dsec
