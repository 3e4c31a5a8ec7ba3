#include "core/remote/values.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/iso_time.h"
#include "core/base/json_bytes.h"
#include "core/engine/branching_json.h"
#include "core/model/operation.h"
#include "core/remote/frame.h"

namespace dsec::remote {
using namespace engine;
using std::chrono::milliseconds;
using std::chrono::system_clock;
namespace {

// The library's own exceptions say where they were thrown, and not of what.
template <typename Read>
auto reading(const char* what, Read&& read) {
  try {
    return read();
  } catch (const Json::exception& error) {
    throw usage_error(std::string(what) + " is not as it should be: " + error.what());
  }
}

Json time_or_null(system_clock::time_point time) {
  return time == system_clock::time_point() ? Json(nullptr) : Json(format_iso_time(time));
}

system_clock::time_point time_member(const Json& json, const char* key) {
  const std::string text = json_string_or(json, key, "");
  return text.empty() ? system_clock::time_point() : parse_iso_time(text);
}

Json bytes_list(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(json_bytes(text));
  return list;
}

std::string bytes_member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? std::string() : bytes_of_json(*found);
}

std::vector<std::string> bytes_list_member(const Json& json, const char* key) {
  std::vector<std::string> texts;
  for (const Json& text : json.value(key, Json::array())) texts.push_back(bytes_of_json(text));
  return texts;
}

std::optional<std::uint64_t> count_member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? std::nullopt : std::optional(json_u64(json, key));
}

std::optional<milliseconds> duration_member(const Json& json, const char* key) {
  const auto count = count_member(json, key);
  return count ? std::optional(milliseconds(*count)) : std::nullopt;
}

std::uint16_t small_member(const Json& json, const char* key, std::uint16_t fallback) {
  const std::uint64_t value = json_u64_or(json, key, fallback);
  if (value > 0xffff) throw usage_error("'" + std::string(key) + "' is too large");
  return static_cast<std::uint16_t>(value);
}

template <typename Value>
void put(Json& json, const char* key, const std::optional<Value>& value) {
  if (value) json[key] = *value;
}

// By the word that stands for it.
template <typename Value>
Value value_of(const char* what, const std::string& word, Value last) {
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (to_string(static_cast<Value>(i)) == word) return static_cast<Value>(i);
  throw usage_error("unknown " + std::string(what) + " " + quote(word));
}

constexpr const char* kChanges[] = {"added", "modified", "deleted"};

// Requests of commands are written as their records are; what a record leaves out stands beside it.
Operation as_recorded(const Json& json) {
  Operation operation;
  operation.request = canonical_json(json);
  return operation;
}

}  // namespace

Json to_wire(const SandboxInfo& info) {
  return {{"id", info.id},
          {"spec", dsec::to_json(info.spec)},
          {"state", to_string(info.state)},
          {"reason", info.reason},
          {"created", time_or_null(info.created)},
          {"ended", time_or_null(info.ended)},
          {"result", info.main_result ? to_wire(*info.main_result) : Json(nullptr)},
          {"command", bytes_list(info.command)},
          {"keeper_pid", info.keeper_pid}};
}

SandboxInfo sandbox_from_wire(const Json& json) {
  return reading("a sandbox", [&] {
    SandboxInfo info;
    info.id = json_string(json, "id");
    info.spec = sandbox_spec_from_json(json.at("spec"));
    info.state = value_of("state", json_string(json, "state"), SandboxState::Orphaned);
    info.reason = json_string_or(json, "reason", "");
    info.created = time_member(json, "created");
    info.ended = time_member(json, "ended");
    if (const auto result = json.find("result"); result != json.end() && !result->is_null())
      info.main_result = exec_result_from_wire(*result);
    info.command = bytes_list_member(json, "command");
    info.keeper_pid = static_cast<int>(json_u64_or(json, "keeper_pid", 0));
    return info;
  });
}

Json to_wire(const SandboxStats& stats) {
  Json json = {{"memory_bytes", stats.memory_bytes}, {"memory_limit", stats.memory_limit},
               {"cpu_usec", stats.cpu_usec},         {"pids", stats.pids},
               {"pids_limit", stats.pids_limit},     {"disk_bytes", stats.disk_bytes},
               {"disk_limit", stats.disk_limit}};
  put(json, "memory_peak", stats.memory_peak);
  put(json, "memory_before_pause", stats.memory_before_pause);
  put(json, "oom_kills", stats.oom_kills);
  if (const auto& host = stats.host_memory)
    json["host_memory"] = {{"own", host->own}, {"shared", host->shared}, {"part_of_shared", host->part_of_shared}};
  return json;
}

SandboxStats stats_from_wire(const Json& json) {
  SandboxStats stats;
  stats.memory_bytes = json_u64(json, "memory_bytes");
  stats.memory_limit = json_u64(json, "memory_limit");
  stats.cpu_usec = json_u64(json, "cpu_usec");
  stats.pids = json_u64(json, "pids");
  stats.pids_limit = json_u64(json, "pids_limit");
  stats.disk_bytes = json_u64(json, "disk_bytes");
  stats.disk_limit = json_u64(json, "disk_limit");
  stats.memory_peak = count_member(json, "memory_peak");
  stats.memory_before_pause = count_member(json, "memory_before_pause");
  stats.oom_kills = count_member(json, "oom_kills");
  if (const auto host = json.find("host_memory"); host != json.end())
    stats.host_memory = {json_u64(*host, "own"), json_u64(*host, "shared"), json_u64(*host, "part_of_shared")};
  return stats;
}

Json to_wire(const ExecInfo& info) {
  return {{"exec_id", info.exec_id},
          {"argv", bytes_list(info.argv)},
          {"session", info.session},
          {"running", info.running},
          {"result", info.result ? to_wire(*info.result) : Json(nullptr)}};
}

ExecInfo exec_info_from_wire(const Json& json) {
  return reading("a command", [&] {
    ExecInfo info;
    info.exec_id = json_string(json, "exec_id");
    info.argv = bytes_list_member(json, "argv");
    info.session = json_string_or(json, "session", "");
    info.running = json.value("running", false);
    if (const auto result = json.find("result"); result != json.end() && !result->is_null())
      info.result = exec_result_from_wire(*result);
    return info;
  });
}

Json to_wire(const SessionInfo& info) {
  return {{"id", info.id},
          {"name", info.name},
          {"shell", bytes_list(info.shell)},
          {"tty", info.tty},
          {"opened", time_or_null(info.opened)},
          {"commands", info.commands},
          {"running", info.running}};
}

SessionInfo session_from_wire(const Json& json) {
  return reading("a session", [&] {
    SessionInfo info;
    info.id = json_string(json, "id");
    info.name = json_string_or(json, "name", "");
    info.shell = bytes_list_member(json, "shell");
    info.tty = json.value("tty", false);
    info.opened = time_member(json, "opened");
    info.commands = static_cast<std::uint32_t>(json_u64_or(json, "commands", 0));
    info.running = json_string_or(json, "running", "");
    return info;
  });
}

Json to_wire(const StoredLayer& layer) {
  return {{"digest", layer.digest.str()},
          {"manifest", parse_json(layer.manifest.canonical(), "manifest")},
          {"tags", layer.tags},
          {"labels", layer.labels},
          {"added", time_or_null(layer.added)},
          {"trusted", layer.trusted},
          {"in_place", layer.in_place}};
}

StoredLayer layer_from_wire(const Json& json) {
  return reading("a layer", [&] {
    const Digest digest = Digest::parse(json_string(json, "digest"));
    StoredLayer layer{.digest = digest,
                      .manifest = LayerManifest::parse(canonical_json(json.at("manifest")), digest.str()),
                      .tags = json.value("tags", std::vector<std::string>{}),
                      .labels = json.value("labels", std::map<std::string, std::string>{}),
                      .added = time_member(json, "added")};
    layer.trusted = json.value("trusted", false);
    layer.in_place = json.value("in_place", false);
    return layer;
  });
}

Json to_wire(const ExecSpec& spec) {
  Json json = exec_request(spec);
  json["rows"] = spec.rows;
  json["columns"] = spec.columns;
  json["detach"] = spec.detach;
  return json;
}

ExecSpec exec_spec_from_wire(const Json& json) {
  return reading("a command", [&] {
    ExecSpec spec = exec_spec_of(as_recorded(json));
    spec.rows = small_member(json, "rows", spec.rows);
    spec.columns = small_member(json, "columns", spec.columns);
    spec.detach = json.value("detach", false);
    return spec;
  });
}

Json to_wire(const SessionSpec& spec) {
  Json json = session_open_request(spec);
  json["rows"] = spec.rows;
  json["columns"] = spec.columns;
  put(json, "output_limit", spec.output_limit);
  return json;
}

SessionSpec session_spec_from_wire(const Json& json) {
  return reading("a session", [&] {
    SessionSpec spec = session_spec_of(as_recorded(json));
    spec.rows = small_member(json, "rows", spec.rows);
    spec.columns = small_member(json, "columns", spec.columns);
    spec.output_limit = count_member(json, "output_limit");
    return spec;
  });
}

Json to_wire(const SessionCommand& command) {
  // Which session is in the path.
  Json json = session_request("", command);
  json.erase("session");
  json["rows"] = command.rows;
  json["columns"] = command.columns;
  json["detach"] = command.detach;
  return json;
}

SessionCommand session_command_from_wire(const Json& json) {
  return reading("a command", [&] {
    Json record = json;
    record["session"] = "";
    std::string session;
    SessionCommand command = session_command_of(as_recorded(record), session);
    command.rows = small_member(json, "rows", command.rows);
    command.columns = small_member(json, "columns", command.columns);
    command.detach = json.value("detach", false);
    return command;
  });
}

Json to_wire(const UpdateRequest& request) { return update_json(request); }

UpdateRequest update_from_wire(const Json& json) {
  return reading("an update", [&] {
    UpdateRequest request = limits_request_from(json);
    request.lifetime = duration_member(json, "lifetime_ms");
    request.idle = duration_member(json, "idle_ms");
    request.idle_pause = duration_member(json, "idle_pause_ms");
    const Json labels = json.value("labels", Json::object());
    for (const auto& [key, value] : labels.items())
      request.labels[key] = value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
    return request;
  });
}

Json to_wire(const SnapshotRequest& request) { return snapshot_json(request); }

SnapshotRequest snapshot_request_from_wire(const Json& json) {
  return reading("a snapshot", [&] {
    // A record may leave the tag out, where a reference would mean the latest.
    SnapshotRequest request = snapshot_request_from(json);
    if (json_string(json, "layer").find(':') == std::string::npos) request.tag.clear();
    request.labels = json.value("labels", std::map<std::string, std::string>{});
    return request;
  });
}

Json to_wire(const ForkRequest& request) { return fork_json(request); }

ForkRequest fork_request_from_wire(const Json& json) {
  return reading("a fork", [&] {
    ForkRequest request = fork_request_from(json);
    request.labels = json.value("labels", std::map<std::string, std::string>{});
    return request;
  });
}

Json to_wire(const HttpRequest& request) {
  Json json = {{"method", request.method},
               {"path", json_bytes(request.path)},
               {"headers", bytes_list(request.headers)},
               {"body", json_bytes(request.body)},
               {"host", request.host}};
  if (request.timeout) json["timeout_ms"] = request.timeout->count();
  return json;
}

HttpRequest http_request_from_wire(const Json& json) {
  return reading("a request", [&] {
    HttpRequest request;
    request.method = json_string(json, "method");
    request.path = bytes_of_json(json.at("path"));
    request.headers = bytes_list_member(json, "headers");
    request.body = bytes_member(json, "body");
    request.host = json_string_or(json, "host", "");
    request.timeout = duration_member(json, "timeout_ms");
    return request;
  });
}

Json to_wire(const HttpResponse& response) {
  Json headers = Json::array();
  for (const auto& [name, value] : response.headers)
    headers.push_back(Json::array({json_bytes(name), json_bytes(value)}));
  return {{"status", response.status}, {"reason", json_bytes(response.reason)}, {"headers", std::move(headers)}};
}

HttpResponse http_response_from_wire(const Json& json) {
  return reading("an answer", [&] {
    HttpResponse response;
    response.status = static_cast<int>(json_u64(json, "status"));
    response.reason = bytes_member(json, "reason");
    for (const Json& header : json.at("headers"))
      response.headers.emplace_back(bytes_of_json(header.at(0)), bytes_of_json(header.at(1)));
    return response;
  });
}

NetworkChange network_change_from_wire(const Json& json) {
  return reading("a change of the network", [&] {
    NetworkChange change;
    if (json.contains("plan")) change.plan = network_plan_from_json(json["plan"]);
    if (json.contains("phase")) change.phase = json_string(json, "phase");
    Json written = Json::object();
    for (const char* key : {"allow", "deny", "inject"})
      if (json.contains(key)) written[key] = json[key];
    const NetworkPolicy policy = network_policy_from_json(written);
    if (json.contains("allow") || json.contains("deny")) change.rules = {policy.allow, policy.deny};
    if (json.contains("inject")) change.inject = policy.inject;
    if (json.contains("strict")) change.strict = json["strict"].get<bool>();
    return change;
  });
}

Json to_wire(const Change& change) {
  return {{"kind", kChanges[static_cast<std::size_t>(change.kind)]}, {"path", json_bytes(change.path)}};
}

Change change_from_wire(const Json& json) {
  const std::string word = json_string(json, "kind");
  for (std::size_t i = 0; i < std::size(kChanges); ++i)
    if (word == kChanges[i]) return {static_cast<Change::Kind>(i), bytes_member(json, "path")};
  throw usage_error("unknown change " + quote(word));
}

Json to_wire(const FileChange& change) {
  Json json = to_wire(change.change);
  json["binary"] = change.binary;
  json["added_lines"] = change.added_lines;
  json["deleted_lines"] = change.deleted_lines;
  json["bytes_before"] = change.bytes_before;
  json["bytes_after"] = change.bytes_after;
  return json;
}

FileChange file_change_from_wire(const Json& json) {
  return reading("a change", [&] {
    FileChange change;
    change.change = change_from_wire(json);
    change.binary = json.value("binary", false);
    change.added_lines = json_u64(json, "added_lines");
    change.deleted_lines = json_u64(json, "deleted_lines");
    change.bytes_before = json_u64(json, "bytes_before");
    change.bytes_after = json_u64(json, "bytes_after");
    return change;
  });
}

Json to_wire(const FileEvent& event) {
  return {{"kind", to_string(event.kind)},
          {"path", json_bytes(event.path)},
          {"from", json_bytes(event.from)},
          {"directory", event.directory}};
}

FileEvent file_event_from_wire(const Json& json) {
  return reading("an event", [&] {
    FileEvent event{value_of("event", json_string(json, "kind"), FileEvent::Kind::Ended), bytes_member(json, "path"),
                    bytes_member(json, "from"), json.value("directory", false)};
    return event;
  });
}

Json to_wire(const NetworkReport& report) {
  return {{"plan", report.plan ? dsec::to_json(*report.plan) : Json(nullptr)},
          {"attached", report.attached},
          {"connections", report.connections},
          {"sent", report.sent},
          {"received", report.received},
          {"allowed", report.allowed},
          {"denied", report.denied},
          {"names", report.names}};
}

NetworkReport network_report_from_wire(const Json& json) {
  return reading("a report of a network", [&] {
    NetworkReport report;
    if (const Json& plan = json.at("plan"); !plan.is_null()) report.plan = network_plan_from_json(plan);
    report.attached = json.value("attached", false);
    report.connections = json_u64(json, "connections");
    report.sent = json_u64(json, "sent");
    report.received = json_u64(json, "received");
    report.allowed = json_u64(json, "allowed");
    report.denied = json_u64(json, "denied");
    report.names = json_u64(json, "names");
    return report;
  });
}

Json to_wire(const Operation& operation) {
  return {{"started", parse_json(started_line(operation), "record")},
          {"done", operation.done ? parse_json(done_line(operation), "record") : Json(nullptr)}};
}

Operation operation_from_wire(const Json& json) {
  return reading("an operation", [&] {
    Operation operation = operation_from(json.at("started"));
    if (const Json& done = json.at("done"); !done.is_null()) operation.done = done_from(done);
    return operation;
  });
}

Json to_wire(const TrajectoryInfo& info) {
  Json layers = Json::array();
  for (const Digest& layer : info.layers) layers.push_back(layer.str());
  return {{"id", info.id},
          {"environment", info.environment},
          {"source", info.source},
          {"created", time_or_null(info.created)},
          {"last", time_or_null(info.last)},
          {"operations", info.operations},
          {"bytes", info.bytes},
          {"live", info.live},
          {"layers", layers}};
}

TrajectoryInfo trajectory_from_wire(const Json& json) {
  return reading("a trajectory", [&] {
    TrajectoryInfo info;
    info.id = json_string(json, "id");
    info.environment = json_string_or(json, "environment", "");
    info.source = json_string_or(json, "source", "");
    info.created = time_member(json, "created");
    info.last = time_member(json, "last");
    info.operations = json_u64(json, "operations");
    info.bytes = json_u64(json, "bytes");
    info.live = json.value("live", false);
    for (const Json& layer : json.at("layers")) info.layers.push_back(Digest::parse(layer.get<std::string>()));
    return info;
  });
}

}  // namespace dsec::remote
