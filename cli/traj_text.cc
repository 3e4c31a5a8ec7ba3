#include "cli/traj_text.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/exec_json.h"
#include "cli/output.h"
#include "cli/status_file.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/json_bytes.h"
#include "core/base/units.h"

namespace dsec::cli {
namespace {

bool is_command(const Operation& operation) { return operation.kind == "exec" || operation.kind == "session"; }

// Of what an imported trajectory says nothing is certain.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  try {
    return bytes_of_json(value);
  } catch (const Error&) {
    return canonical_json(value);
  }
}

std::string words_of(const Json& argv) {
  std::string text;
  for (const Json& word : argv) text += (text.empty() ? "" : " ") + text_of(word);
  return text;
}

std::string first_line(const std::string& text) {
  constexpr std::size_t kMost = 100;
  const std::size_t end = std::min(text.find('\n'), text.size());
  return end > kMost ? text.substr(0, kMost) + "…" : end < text.size() ? text.substr(0, end) + " …" : text;
}

}  // namespace

engine::Trajectory find_trajectory(const std::string& what, engine::Engine& engine) {
  std::error_code error;
  if (what.find('/') == std::string::npos && !std::filesystem::exists(what, error)) return engine.trajectory(what);
  // What is opened is no symlink, which a trajectory's directory could have been made to hold.
  const std::filesystem::path place = std::filesystem::canonical(what, error);
  if (error) throw usage_error("open " + quote(what) + ": " + errno_text(error.value()));
  return engine::Trajectory::read(place);
}

std::string describe_request(const Operation& operation) {
  const Json request = parse_json(operation.request, "request");
  std::string rest;
  if (request.contains("argv")) rest = words_of(request["argv"]);
  for (const char* member : {"command", "path", "method", "port", "name", "host", "function", "format", "source"}) {
    const auto found = request.find(member);
    if (found != request.end()) rest += (rest.empty() ? "" : " ") + text_of(*found);
  }
  // What was said where a trajectory was imported from.
  if (const auto message = request.find("message"); message != request.end())
    if (const std::string said = first_line(text_of(*message)); !said.empty()) rest += ": " + said;
  return printable(operation.kind + (rest.empty() ? "" : " " + rest));
}

std::string describe_outcome(const engine::Trajectory& trajectory, const Operation& operation) {
  if (!operation.done) return trajectory.live ? "running" : "unknown outcome";
  if (operation.done->outcome == Operation::Outcome::Interrupted) return "interrupted";
  const Json result = parse_json(operation.done->result, "result");
  if (operation.done->outcome == Operation::Outcome::Failed) {
    const Json chain = result.value("error", Json::object()).value("chain", Json::array());
    return "failed" + (chain.empty() ? "" : ": " + printable(text_of(chain.back())));
  }
  // Where it was imported from nobody keeps exit codes.
  if (result.contains("combined")) return "ended";
  return is_command(operation) ? describe_end(exec_result_of(operation)) : "ok";
}

std::optional<std::chrono::milliseconds> first_command(const engine::Trajectory& trajectory) {
  for (const Operation& operation : trajectory.operations)
    if (is_command(operation) && operation.done)
      return std::chrono::duration_cast<std::chrono::milliseconds>(operation.done->time - trajectory.header.created);
  return std::nullopt;
}

std::string describe_loading(const engine::Trajectory& trajectory) {
  const Operation::Loaded* last = nullptr;
  for (const Operation& operation : trajectory.operations)
    if (operation.done && operation.done->on_demand) last = &*operation.done->on_demand;
  if (!last) return "";
  const auto first = first_command(trajectory);
  return "fetched " + format_size(last->fetched) + " of " + format_size(last->bytes) +
         (first ? ", the first command had ended after " + format_duration(*first) : "");
}

Json to_json(const TrajectoryHeader& header) { return parse_json(to_line(header), "header"); }

Json to_json(const engine::Trajectory& trajectory, const Operation& operation, const engine::SecretMask& mask) {
  const Operation masked = mask.operation(operation);
  Json json = {
      {"seq", masked.seq},
      {"op_id", masked.op_id},
      {"kind", masked.kind},
      {"origin", to_string(masked.origin)},
      {"started", iso_time(masked.started)},
      {"started_us", std::chrono::duration_cast<std::chrono::microseconds>(masked.started.time_since_epoch()).count()},
      {"request", parse_json(masked.request, "request")},
      {"outcome", masked.done       ? to_string(masked.done->outcome)
                  : trajectory.live ? "running"
                                    : "unknown"}};
  if (!masked.exec_id.empty()) json["exec_id"] = masked.exec_id;
  if (!masked.done) return json;
  json["duration_us"] = masked.done->duration.count();
  json["result"] = parse_json(masked.done->result, "result");
  if (const auto& loaded = masked.done->on_demand)
    json["on_demand"] = {{"bytes", loaded->bytes}, {"fetched", loaded->fetched}};
  for (unsigned stream = 0; stream < 2; ++stream) {
    const std::string text = mask.text(trajectory.output(operation, stream));
    if (!text.empty()) json[stream ? "stderr" : "stdout"] = json_bytes(text);
  }
  if (const std::string given = mask.text(trajectory.input(operation)); !given.empty())
    json["stdin"] = json_bytes(given);
  return json;
}

engine::SecretMask secret_mask(const engine::Trajectory& trajectory) {
  const Config config = Config::load();
  engine::SecretMask mask = config.secrets ? engine::SecretMask(*config.secrets) : engine::SecretMask();
  mask.learn(trajectory);
  return mask;
}

}  // namespace dsec::cli
