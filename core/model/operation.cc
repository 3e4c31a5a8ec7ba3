#include "core/model/operation.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_bytes.h"

namespace dsec {
namespace {
using std::chrono::microseconds;
using std::chrono::system_clock;

constexpr std::uint64_t kSchema = 1;
constexpr std::size_t kLongestOpId = 128;

constexpr std::pair<std::string_view, Origin> kOrigins[] = {
    {"cli", Origin::Cli},       {"sdk", Origin::Sdk},   {"session", Origin::Session},
    {"replay", Origin::Replay}, {"task", Origin::Task}, {"gateway", Origin::Gateway},
};

constexpr std::pair<std::string_view, Operation::Outcome> kOutcomes[] = {
    {"ok", Operation::Outcome::Ok},
    {"failed", Operation::Outcome::Failed},
    {"interrupted", Operation::Outcome::Interrupted},
};

constexpr std::pair<std::string_view, ExecResult::Cause> kCauses[] = {
    {"exited", ExecResult::Cause::Exited},
    {"signalled", ExecResult::Cause::Signalled},
    {"timed_out", ExecResult::Cause::TimedOut},
    {"out_of_memory", ExecResult::Cause::OutOfMemory},
    {"cannot_execute", ExecResult::Cause::CannotExecute},
    {"not_found", ExecResult::Cause::NotFound},
    {"lost", ExecResult::Cause::Lost},
    {"unknown", ExecResult::Cause::Unknown},
};

template <typename Table, typename Value>
std::string_view word_of(const Table& table, Value value) {
  return std::find_if(std::begin(table), std::end(table), [&](const auto& entry) { return entry.second == value; })
      ->first;
}

template <typename Table>
auto value_of(const Table& table, std::string_view what, std::string_view word) {
  const auto found =
      std::find_if(std::begin(table), std::end(table), [&](const auto& entry) { return entry.first == word; });
  if (found == std::end(table)) throw usage_error("unknown " + std::string(what) + " " + quote(word));
  return found->second;
}

std::int64_t micros(system_clock::time_point time) {
  return std::chrono::duration_cast<microseconds>(time.time_since_epoch()).count();
}

// Beyond the year 2200 no clock of ours counts on.
std::uint64_t micros_member(const Json& json, const char* key) {
  constexpr std::uint64_t kMost = 7'258'118'400'000'000;
  const std::uint64_t value = json_u64(json, key);
  if (value > kMost) throw usage_error(quote(key) + " is too large");
  return value;
}

system_clock::time_point time_member(const Json& json, const char* key) {
  return system_clock::time_point(microseconds(micros_member(json, key)));
}

std::string object_member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return "{}";
  if (!found->is_object()) throw usage_error(quote(key) + " is no object");
  return canonical_json(*found);
}

std::string bytes_member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? "" : bytes_of_json(*found);
}

Json list_of_bytes(const std::vector<std::string>& values) {
  Json list = Json::array();
  for (const std::string& value : values) list.push_back(json_bytes(value));
  return list;
}

std::vector<std::string> bytes_list_member(const Json& json, const char* key) {
  std::vector<std::string> values;
  for (const Json& value : json.value(key, Json::array())) values.push_back(bytes_of_json(value));
  return values;
}

// A name comes from a file that may have come from elsewhere, and is opened beside it.
std::string file_name(const Json& json) {
  std::string name = json_string(json, "name");
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos)
    throw usage_error(quote(name) + " is no name of a file beside the log");
  return name;
}

Operation::Part part_from(const Json& json) { return {file_name(json), json_u64(json, "bytes")}; }

Json part_json(const Operation::Part& part) { return {{"name", part.name}, {"bytes", part.bytes}}; }

template <typename Read>
auto read_record(std::string_view what, Read&& read) {
  return attempt(std::string(what) + " is not valid", [&] {
    try {
      return read();
    } catch (const nlohmann::json::exception& error) {
      throw usage_error(error.what());
    }
  });
}

std::string detail_of(const std::string& step, const std::string& object, int error) {
  if (step.empty()) return "";
  std::string text = step;
  if (!object.empty()) text += " " + quote(object);
  return error ? text + ": " + errno_text(error) : text;
}

}  // namespace

std::string_view to_string(Origin origin) { return word_of(kOrigins, origin); }
Origin origin_from(std::string_view text) { return value_of(kOrigins, "origin", text); }
std::string_view to_string(Operation::Outcome outcome) { return word_of(kOutcomes, outcome); }

void check_op_id(std::string_view op_id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._:/@+-").find(c) != std::string_view::npos;
  };
  if (op_id.size() <= kLongestOpId && std::all_of(op_id.begin(), op_id.end(), allowed)) return;
  throw usage_error(quote(op_id) + " is no name for an operation")
      .hint("use 1 to " + std::to_string(kLongestOpId) + " letters, digits and . _ : / @ + -");
}

std::string to_line(const TrajectoryHeader& header) {
  Json layers = Json::array();
  for (const auto& layer : header.layers) layers.push_back({{"digest", layer.digest.str()}, {"name", layer.name}});
  Json json = {{"schema", kSchema},  {"trajectory", header.id},      {"environment", header.environment},
               {"layers", layers},   {"spec", to_json(header.spec)}, {"created_us", micros(header.created)},
               {"dsec", header.dsec}};
  if (!header.source.empty()) json["source"] = header.source;
  return canonical_json(json);
}

std::string started_line(const Operation& operation) {
  Json json = {{"seq", operation.seq},
               {"record", "started"},
               {"op_id", operation.op_id},
               {"kind", operation.kind},
               {"origin", to_string(operation.origin)},
               {"time_us", micros(operation.started)},
               {"request", parse_json(operation.request, "request")}};
  if (!operation.exec_id.empty()) json["exec_id"] = operation.exec_id;
  return canonical_json(json);
}

std::string done_line(const Operation& operation) {
  const Operation::Done& done = operation.done.value();
  Json json = {{"seq", operation.seq},
               {"record", "done"},
               {"op_id", operation.op_id},
               {"time_us", micros(done.time)},
               {"duration_us", done.duration.count()},
               {"outcome", to_string(done.outcome)},
               {"result", parse_json(done.result, "result")}};
  if (!done.stdout_data.empty()) json["stdout"] = json_bytes(done.stdout_data);
  if (!done.stderr_data.empty()) json["stderr"] = json_bytes(done.stderr_data);
  if (!done.stdin_data.empty()) json["stdin"] = json_bytes(done.stdin_data);
  if (done.on_demand) json["on_demand"] = {{"bytes", done.on_demand->bytes}, {"fetched", done.on_demand->fetched}};
  Json files = Json::object();
  for (const Operation::Part& part : done.output) files["output"].push_back(part_json(part));
  if (done.stdin_file) files["stdin"] = part_json(*done.stdin_file);
  if (done.content) {
    Json content = {{"bytes", done.content->bytes}, {"sha256", done.content->sha256}};
    if (!done.content->name.empty()) content["name"] = done.content->name;
    files["content"] = content;
  }
  if (!files.empty()) json["files"] = files;
  return canonical_json(json);
}

TrajectoryHeader trajectory_header_from(const Json& json) {
  return read_record("the header of the trajectory", [&] {
    const std::uint64_t schema = json_u64(json, "schema");
    if (schema != kSchema)
      throw usage_error("it has schema " + std::to_string(schema) + ", this dsec knows " + std::to_string(kSchema))
          .hint("use the dsec release that wrote it, or a newer one");
    TrajectoryHeader header;
    header.id = json_string(json, "trajectory");
    header.environment = json_string_or(json, "environment", "");
    for (const Json& layer : json.value("layers", Json::array()))
      header.layers.push_back({Digest::parse(json_string(layer, "digest")), json_string_or(layer, "name", "")});
    header.spec = sandbox_spec_from_json(json.value("spec", Json::object()));
    header.created = time_member(json, "created_us");
    header.dsec = json_string_or(json, "dsec", "");
    header.source = json_string_or(json, "source", "");
    return header;
  });
}

Operation operation_from(const Json& json) {
  return read_record("a record", [&] {
    Operation operation;
    operation.seq = json_u64(json, "seq");
    operation.op_id = json_string(json, "op_id");
    operation.kind = json_string(json, "kind");
    operation.origin = origin_from(json_string(json, "origin"));
    operation.started = time_member(json, "time_us");
    operation.exec_id = json_string_or(json, "exec_id", "");
    operation.request = object_member(json, "request");
    return operation;
  });
}

Operation::Done done_from(const Json& json) {
  return read_record("a record", [&] {
    Operation::Done done;
    done.time = time_member(json, "time_us");
    done.duration = microseconds(micros_member(json, "duration_us"));
    done.outcome = value_of(kOutcomes, "outcome", json_string(json, "outcome"));
    done.result = object_member(json, "result");
    done.stdout_data = bytes_member(json, "stdout");
    done.stderr_data = bytes_member(json, "stderr");
    done.stdin_data = bytes_member(json, "stdin");
    if (const auto found = json.find("on_demand"); found != json.end())
      done.on_demand = Operation::Loaded{json_u64(*found, "bytes"), json_u64(*found, "fetched")};
    const Json files = json.value("files", Json::object());
    for (const Json& part : files.value("output", Json::array())) done.output.push_back(part_from(part));
    if (const auto found = files.find("stdin"); found != files.end()) done.stdin_file = part_from(*found);
    if (const auto found = files.find("content"); found != files.end()) {
      Operation::Content content{"", json_u64(*found, "bytes"), json_string(*found, "sha256")};
      if (found->contains("name")) content.name = file_name(*found);
      done.content = content;
    }
    return done;
  });
}

Json exec_request(const ExecSpec& spec) {
  Json json = {{"argv", list_of_bytes(spec.argv)},
               {"env", list_of_bytes(spec.env)},
               {"workdir", json_bytes(spec.workdir)},
               {"user", json_bytes(spec.user)},
               {"tty", spec.tty},
               {"stdin", spec.open_stdin},
               {"main", spec.main}};
  if (spec.timeout) json["timeout_ms"] = spec.timeout->count();
  if (spec.output_limit) json["output_limit"] = *spec.output_limit;
  return json;
}

Json session_open_request(const SessionSpec& spec) {
  return {{"session", spec.name},           {"shell", json_bytes(spec.shell)},
          {"env", list_of_bytes(spec.env)}, {"workdir", json_bytes(spec.workdir)},
          {"user", json_bytes(spec.user)},  {"tty", spec.tty}};
}

Json session_request(const std::string& session, const SessionCommand& command) {
  Json json = {{"session", session}, {"command", json_bytes(command.text)}, {"stdin", command.open_stdin}};
  if (command.timeout) json["timeout_ms"] = command.timeout->count();
  if (command.output_limit) json["output_limit"] = *command.output_limit;
  return json;
}

ExecSpec exec_spec_of(const Operation& operation) {
  return read_record("the request of operation " + std::to_string(operation.seq), [&] {
    const Json json = parse_json(operation.request, "request");
    ExecSpec spec;
    spec.argv = bytes_list_member(json, "argv");
    spec.env = bytes_list_member(json, "env");
    spec.workdir = bytes_member(json, "workdir");
    spec.user = bytes_member(json, "user");
    spec.tty = json.value("tty", false);
    spec.open_stdin = json.value("stdin", false);
    spec.main = json.value("main", false);
    if (json.contains("timeout_ms")) spec.timeout = std::chrono::milliseconds(json_u64(json, "timeout_ms"));
    if (json.contains("output_limit")) spec.output_limit = json_u64(json, "output_limit");
    return spec;
  });
}

SessionSpec session_spec_of(const Operation& operation) {
  return read_record("the request of operation " + std::to_string(operation.seq), [&] {
    const Json json = parse_json(operation.request, "request");
    SessionSpec spec;
    spec.name = json_string_or(json, "session", "");
    spec.shell = bytes_member(json, "shell");
    spec.env = bytes_list_member(json, "env");
    spec.workdir = bytes_member(json, "workdir");
    spec.user = bytes_member(json, "user");
    spec.tty = json.value("tty", false);
    return spec;
  });
}

SessionCommand session_command_of(const Operation& operation, std::string& session) {
  return read_record("the request of operation " + std::to_string(operation.seq), [&] {
    const Json json = parse_json(operation.request, "request");
    session = json_string(json, "session");
    SessionCommand command;
    command.text = bytes_member(json, "command");
    command.open_stdin = json.value("stdin", false);
    if (json.contains("timeout_ms")) command.timeout = std::chrono::milliseconds(json_u64(json, "timeout_ms"));
    if (json.contains("output_limit")) command.output_limit = json_u64(json, "output_limit");
    return command;
  });
}

ExecResult exec_result_of(const Operation& operation) {
  ExecResult result;
  result.cause = ExecResult::Cause::Unknown;
  if (!operation.done) {
    result.detail = "its beginning is recorded, but not its end";
    return result;
  }
  const Operation::Done& done = *operation.done;
  if (done.outcome == Operation::Outcome::Interrupted) {
    result.detail = "what carried it out was interrupted";
  } else {
    result = exec_result_from(parse_json(done.result, "result"));
  }
  result.duration = done.duration;
  return result;
}

Json exec_result_json(const ExecResult& result) {
  Json json = {{"cause", word_of(kCauses, result.cause)},
               {"exit_code", result.exit_code},
               {"signal", result.signal},
               {"duration_us", result.duration.count()},
               {"stdout_bytes", result.stdout_bytes},
               {"stderr_bytes", result.stderr_bytes},
               {"stdout_dropped", result.stdout_dropped},
               {"stderr_dropped", result.stderr_dropped}};
  if (result.session_ended) json["session_ended"] = true;
  if (result.oom_kills) {
    json["oom_kills"] = result.oom_kills;
    json["memory_limit"] = result.memory_limit;
    json["memory_peak"] = result.memory_peak;
  }
  return json;
}

ExecResult exec_result_from(const Json& json) {
  ExecResult result;
  result.cause = value_of(kCauses, "cause", json_string(json, "cause"));
  result.exit_code = static_cast<int>(json_u64_or(json, "exit_code", 0));
  result.signal = static_cast<int>(json_u64_or(json, "signal", 0));
  result.duration = microseconds(json_u64_or(json, "duration_us", 0));
  result.stdout_bytes = json_u64_or(json, "stdout_bytes", 0);
  result.stderr_bytes = json_u64_or(json, "stderr_bytes", 0);
  result.stdout_dropped = json_u64_or(json, "stdout_dropped", 0);
  result.stderr_dropped = json_u64_or(json, "stderr_dropped", 0);
  result.session_ended = json.value("session_ended", false);
  result.oom_kills = json_u64_or(json, "oom_kills", 0);
  result.memory_limit = json_u64_or(json, "memory_limit", 0);
  result.memory_peak = json_u64_or(json, "memory_peak", 0);
  result.detail = detail_of(json_string_or(json, "step", ""), json_string_or(json, "object", ""),
                            static_cast<int>(json_u64_or(json, "errno", 0)));
  return result;
}

}  // namespace dsec
