#include "cli/traj_text.h"

#include <nlohmann/json.hpp>

#include "cli/exec_json.h"
#include "cli/output.h"
#include "cli/status_file.h"
#include "core/base/config.h"
#include "core/base/error.h"
#include "core/base/json_bytes.h"

namespace dsec::cli {
namespace {

bool is_command(const Operation& operation) { return operation.kind == "exec" || operation.kind == "session"; }

std::string words_of(const Json& argv) {
  std::string text;
  for (const Json& word : argv) text += (text.empty() ? "" : " ") + bytes_of_json(word);
  return text;
}

}  // namespace

std::string describe_request(const Operation& operation) {
  const Json request = parse_json(operation.request, "request");
  std::string rest;
  if (request.contains("argv")) rest = words_of(request["argv"]);
  for (const char* member : {"command", "path", "method", "port", "name", "host"}) {
    const auto found = request.find(member);
    if (found == request.end()) continue;
    rest += (rest.empty() ? "" : " ") + (found->is_number() ? found->dump() : bytes_of_json(*found));
  }
  return printable(operation.kind + (rest.empty() ? "" : " " + rest));
}

std::string describe_outcome(const Operation& operation) {
  if (!operation.done) return "unknown outcome";
  if (operation.done->outcome == Operation::Outcome::Interrupted) return "interrupted";
  const Json result = parse_json(operation.done->result, "result");
  if (operation.done->outcome == Operation::Outcome::Failed) {
    const Json chain = result.value("error", Json::object()).value("chain", Json::array());
    return "failed" + (chain.empty() ? "" : ": " + printable(chain.back().get<std::string>()));
  }
  return is_command(operation) ? describe_end(exec_result_of(operation)) : "ok";
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
      {"outcome", masked.done ? to_string(masked.done->outcome) : "unknown"}};
  if (!masked.exec_id.empty()) json["exec_id"] = masked.exec_id;
  if (!masked.done) return json;
  json["duration_us"] = masked.done->duration.count();
  json["result"] = parse_json(masked.done->result, "result");
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
